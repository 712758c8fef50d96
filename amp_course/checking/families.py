"""Mistakes that several exercises share: the name, and the words for what it does, each once.

Use one as `Mistake(*families.NO_UPDATE, edits={...})` where the words are true of all that the
exercise's cases see. Where an exercise can say more, it keeps the name and says that.
"""

# The scaler's calls
NO_UPDATE = (
    "no update",
    "`scaler.update()` did not run after the step, so the scale is never adjusted. Call it after "
    "every step, skipped or not",
)
NO_UPDATE_AFTER_BOTH = (
    "no update",
    "`scaler.update()` did not run after the steps. Call it once, after both, skipped or not",
)
AN_UPDATE_FOR_EACH = (
    "an update for each",
    "`scaler.update()` ran between the two steps. Call it once, after both",
)
UPDATES_BEFORE_THE_STEP = (
    "updates before the step",
    "`scaler.update()` ran before the step, so the scaler forgot that it had unscaled the "
    "gradients, and unscaled them again. Update last",
)
STEPS_BY_HAND = (
    "steps by hand",
    "the optimizer stepped on gradients that hold inf or NaN. Call `scaler.step(optimizer)`, which "
    "skips such a step",
)
STEPS_WHILE_SCALED = (
    "steps by hand",
    "`optimizer.step()` was called directly, with gradients that are still scaled. Call "
    "`scaler.step(optimizer)`, which unscales them, and skips inf and NaN",
)
SCALER_OF_ITS_OWN = (
    "a scaler of its own",
    "the scaler that was passed in is not used, so its scale stays as it is. Use it instead of "
    "one of your own",
)
LOSS_NOT_SCALED = (
    "loss not scaled",
    "`backward()` ran on the plain loss, and the scaler divides by the scale anyway. Call it on "
    "`scaler.scale(loss)`",
)
PLAIN_LOSS = (
    "loss not scaled",
    "`backward()` ran on the plain loss, and fp16 lost its smallest gradients. Call "
    "`(loss * scale).backward()`",
)
UNSCALES_BY_HAND = (
    "unscales by hand",
    "the gradients were divided by the scale twice. Leave your own division out: `scaler.step` "
    "divides them, unless `scaler.unscale_` has",
)

# The scaler from within
FIRST_GROUP_ONLY = (
    "first group only",
    "the second parameter group still carries the scale. Loop over all of `optimizer.param_groups`",
)
KEEPS_THE_STREAK_AFTER_GROWTH = (
    "keeps the streak after growth",
    "the streak goes on after a growth. It counts the clean steps since then, so set it to 0",
)
KEEPS_THE_STREAK_AFTER_A_SKIP = (
    "keeps the streak after a skip",
    "the streak goes on after a skipped step. Set it to 0 there: the next growth needs a whole new "
    "one",
)
GROWS_TO_INF = (
    "grows to inf",
    "the scale grows past float32's largest number, to inf. torch leaves it unchanged there, and "
    "restarts the streak",
)
FLOOR_OF_1 = (
    "floor of 1",
    "the scale stops falling at 1. torch's rule has no floor, and a scale below 1 is a sign of a "
    "real fault",
)

# What counts as an overflow
MISSES_NAN = (
    "misses NaN",
    "NaN is missed. `isinf()` is False for it, and `max()` may drop it: call `isfinite()`",
)
MISSES_INF = (
    "misses inf",
    "inf is missed. `isfinite()` is False for inf and for NaN alike",
)
JUDGES_BY_THE_NORM = (
    "judges by the norm",
    "a step was skipped although every gradient is finite. Finite gradients can have an infinite "
    "norm or sum, and exceed any limit that you set: call `isfinite()` on the gradients themselves",
)

# Gradients that are None, and optimizers
A_GRADIENT_IS_NONE = (
    "a gradient is None",
    "a gradient is None in a frozen or unused layer, and everywhere after `zero_grad()`. Skip that "
    "parameter",
)
RETURNS_AT_A_MISSING_GRADIENT = (
    "returns at a missing gradient",
    "the step ends at the first parameter without a gradient. Skip only that one, with `continue`",
)
ZEROS_FOR_NONE = (
    "zeros for None",
    "a parameter without a gradient moved: it got a gradient of 0, and weight decay did the rest. "
    "Leave None as it is",
)
USED_UP_IN_INIT = (
    "used up in `__init__`",
    "nothing moves if `params` is an iterator, as `model.parameters()` is. Read it once, into a "
    "list",
)
USED_UP_BY_THE_FIRST_STEP = (
    "used up by the first step",
    "only the first step moves anything if `params` is an iterator, as `model.parameters()` is. "
    "Read it once, into a list",
)
GOES_UP_THE_GRADIENT = (
    "goes up the gradient",
    "the step goes up the gradient. Subtract `lr * gradient`",
)
AUTOGRAD_WATCHES = (
    "autograd watches",
    "a parameter was changed in place while autograd was recording. Do that under "
    "`torch.no_grad()`",
)

# Clearing
NEVER_CLEARS = (
    "never clears",
    "gradients of an earlier step are still there, and new ones are added to them. Call "
    "`optimizer.zero_grad()` after every step",
)
CLEARS_BEFORE_THE_STEP = (
    "clears before the step",
    "the gradients were gone when the optimizer stepped. If you clear them between `backward()` "
    "and the step, do it after the step instead",
)

# Clipping
NO_CLIPPING = (
    "no clipping",
    "the optimizer got unclipped gradients. Call `clip_grad_norm_` between `unscale_` and the step",
)
CLIPS_BEFORE_UNSCALING = (
    "clips before unscaling",
    "the gradients were clipped while they were still scaled, in effect to `max_norm / scale`. "
    "Call `scaler.unscale_(optimizer)` first",
)
CLIPS_VALUES = (
    "clips values",
    "each element was clipped on its own, which changes the direction of the step. Multiply all "
    "gradients by one factor, as `clip_grad_norm_` does",
)
CLIPS_EACH_PARAMETER = (
    "clips each parameter",
    "each parameter was clipped by its own norm, which changes the direction of the step. Call "
    "`clip_grad_norm_` once, for all parameters",
)
CLIPS_IN_PARTS = (
    "clips in parts",
    "the gradients were clipped in parts, each by its own norm, which changes the direction of the "
    "step. Call `clip_grad_norm_` once, for all parameters",
)
ALWAYS_TO_MAX_NORM = (
    "always to max_norm",
    "gradients below the limit were made larger. Clip only if the norm exceeds `max_norm`",
)
RETURNS_THE_NORM_AFTER_CLIPPING = (
    "returns the norm after clipping",
    "you return the norm after clipping. Return the one from before, as `clip_grad_norm_` does",
)
SUM_OF_NORMS = (
    "sum of norms",
    "you added up the norms of the parameters' gradients. Take one norm over all of them, the root "
    "of the sum of their squares",
)

# Accumulation
CLEARS_EACH_MICRO_BATCH = (
    "clears each micro-batch",
    "only the last micro-batch reaches the step. Call `backward()` for each, and neither clear nor "
    "overwrite `.grad` until the step is done",
)
STEPS_EACH_MICRO_BATCH = (
    "steps each micro-batch",
    "the optimizer stepped after every micro-batch. Step once, after the last `backward()`",
)
CLIPS_EACH_MICRO_BATCH = (
    "clips each micro-batch",
    "the sum was clipped after every micro-batch, which changes their shares in it. Clip once, "
    "after the last",
)

# Autocast regions
NO_AUTOCAST = (
    "no autocast",
    "the forward pass ran in fp32. Run it in `with torch.autocast(inputs.device.type, "
    "dtype=torch.bfloat16):`",
)
NO_FP16_AUTOCAST = "no autocast", NO_AUTOCAST[1].replace("bfloat16", "float16")
FP16_REGION = (
    "an fp16 region",
    "the forward pass ran in fp16, whose gradients need a scaler. Use bf16, `dtype=torch.bfloat16`",
)
BACKWARD_INSIDE = (
    "backward inside the region",
    "`backward()` ran inside the autocast region. End the region before it: backward uses the "
    "dtypes of the forward pass anyway",
)
LOSS_OUTSIDE = (
    "loss outside the region",
    "the loss was computed in 16 bits, with autocast off. Move it into the region, where it runs "
    "in fp32",
)
FP32_LOSS_OUTSIDE = (
    "fp32 loss outside",
    "autocast was off for the loss. Compute it inside the region, which casts to fp32 where that "
    "is needed",
)
ONE_REGION_AROUND_ALL = (
    "one region around all steps",
    "one region is open during several updates, and its cache keeps the 16-bit weights of the "
    "first. Open a new region for each batch",
)
CONVERTS_THE_MODEL = (
    "converts the model",
    "the weights were converted to another dtype. Leave that out: autocast casts copies, and keeps "
    "the weights in fp32",
)

# Modes of the model, and evaluation
NO_EVAL = (
    "no eval()",
    "the model ran in training mode, in which dropout and batch norm work differently. Call "
    "`model.eval()` first, which reaches every layer",
)
GRADIENTS_ON = (
    "gradients on",
    "gradients were on, so autograd recorded the evaluation. Run it in `torch.inference_mode()`",
)

# Ranks
REDUCES_TO_RANK_0 = (
    "reduces to rank 0",
    "only rank 0 has the sum over all ranks, as after `dist.reduce`. Use `dist.all_reduce`, which "
    "gives it to all",
)
DIVIDES_BY_ITS_OWN_SAMPLES = (
    "divides by this rank's samples",
    "the sum over all ranks is divided by the samples of only this rank. Divide by those of all "
    "ranks, {total}",
)

# Rounding and scales of small formats
LARGEST_NOT_MAGNITUDE = (
    "the largest, not the largest magnitude",
    "this takes the largest number, but a negative one may be larger in magnitude. Take the "
    "absolute values first, as in `x.abs().max()`",
)
INVERTS_THE_SCALE = (
    "inverts the scale",
    "q is right, but the scale is inverted. Return the factor that q is multiplied by to get x "
    "back, `amax / 448`",
)
MULTIPLIES_BY_THE_SCALE = (
    "multiplies by the scale",
    "you multiply the input by the scale. Divide by it",
)
KEEPS_FLOAT32 = (
    "keeps float32",
    "q is rounded, but stored in float32, which takes four times the memory. Return it in float8",
)
DIVIDES_IN_PLACE = (
    "changes its input",
    "the input itself is divided, as `div_` does it. `x / scale` makes a new tensor",
)
SAME_DRAWS = (
    "the same draws on every call",
    "every call draws the same numbers. Draw from the given generator, not from a copy or another "
    "one with its seed, and do not set its seed or state",
)
DRAWS_FROM_ELSEWHERE = (
    "draws from elsewhere",
    "the generator's seed does not determine the result. Pass it to every draw, as in "
    "`torch.rand(x.shape, generator=generator)`",
)
TOSSES_A_COIN = (
    "tosses a coin",
    "both neighbours come up equally often: {seen}. The nearer one has to come up more often",
)
