# Clip the scaled gradients at max_norm times the scale: the same as clipping the true ones at max_norm.
import torch

torch.manual_seed(1)
MAX_NORM = 0.25
net = torch.nn.Sequential(torch.nn.Linear(10, 40), torch.nn.SiLU(), torch.nn.Linear(40, 1))
sgd = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.8)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=50)
sgd.zero_grad(set_to_none=False)

true_w = torch.randn(10, 1)
for it in range(120):
    x = torch.randn(64, 10)
    y = torch.tanh(x @ true_w)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM * scaler.get_scale())
    scaler.step(sgd)
    scaler.update()
    sgd.zero_grad(set_to_none=False)
    if it % 20 == 0:
        print(it, round(loss.item(), 4))
