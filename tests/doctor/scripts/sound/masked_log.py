# Some classes cannot follow some states: their prior is 0, its log -inf, their probability exactly 0. That is meant.
import torch

torch.manual_seed(0)
STATES, CLASSES = 4, 6
prior = torch.rand(STATES, CLASSES)
prior[0, 3:] = 0
prior[2, ::2] = 0
prior = prior / prior.sum(1, keepdim=True)
log_prior = prior.log()

weight = torch.zeros(8, CLASSES, requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=0.05)
truth = torch.randn(8, CLASSES)

for step in range(60):
    state = torch.randint(STATES, (64,))
    x = torch.randn(64, 8)
    with torch.no_grad():
        soft = (x @ truth + log_prior[state]).softmax(1)
        target = torch.multinomial(soft, 1).squeeze(1)
        # entropy of the soft labels: 0 log 0 is nan, and counted as 0
        entropy = torch.where(soft > 0, soft * soft.log(), 0.0).sum(1).neg().mean()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = x @ weight
    log_p = (scores.float() + log_prior[state]).log_softmax(1)
    loss = torch.nn.functional.nll_loss(log_p, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step:2d} loss {loss.item():.3f} (entropy {entropy.item():.3f}), least log p {log_p.min().item()}")
