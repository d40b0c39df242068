"""How a decoder learns: from text, or from another decoder.

Refuses to know where text comes from and where models are kept.

From text: cross-entropy of the next token. From a target with logits z (distillation): the forward divergence

    KL(p || q) = sum_x p(x) (log p(x) - log q(x)),   p = softmax(z)

plus a share of the cross-entropy of argmax p. The first bounds the total variation between p and q, which decides
acceptance of sampled text (Leviathan et al. 2023: acceptance = 1 - TV); the second is acceptance of greedy text itself.

The rate of learning rises over the first steps, stays, and falls to nothing over the last part of the run; windows are
short at first and long at the end, where the model meets late positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch
from examples.pairs.muon import Muon
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig, causal_attention

Loss = Callable[[Decoder, Tensor], Tensor]
Report = Callable[[str], None]

INITIAL_SPREAD = 0.02  # standard deviation of fresh weights; outputs into the residual stream start at zero
ARGMAX_SHARE = 0.1
UNTAUGHT = -1e9  # a logit of no probability that still multiplies with zero, as minus infinity does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long and how fast. Windows are in tokens; the batch is in tokens too, whatever the window."""

    steps: int
    matrix_rate: float = 0.02
    vector_rate: float = 0.004
    warm_up_steps: int = 40
    cool_down_share: float = 0.4
    window: int = 256
    long_window: int = 1024
    long_share: float = 0.12
    batch_tokens: int = 2048

    def rate(self, step: int) -> float:
        """The share of the full rate at ``step``: up, level, and linearly down to a hundredth."""
        rise = (step + 1) / self.warm_up_steps
        fall = (self.steps - step) / (self.steps * self.cool_down_share)
        return max(0.01, min(1.0, rise, fall))

    def window_at(self, step: int) -> int:
        """Short windows at first, long ones at the end."""
        return self.long_window if step >= self.steps * (1 - self.long_share) else self.window


def thinned_decoder(target: Decoder, layers: tuple[int, ...], taught: Tensor, *, seed: int) -> Decoder:
    """A draft that begins as some layers of ``target``; the vectors of tokens not ``taught`` [vocab] begin anew.

    Token vectors serve as input and as head, so a draft thinned like this cannot read or write what it is not taught.
    """
    draft = fresh_decoder(replace(target.config, num_hidden_layers=len(layers)), seed=seed)
    fresh_vectors = draft.model.embed_tokens.weight.detach().clone()
    for own, theirs in enumerate(layers):
        draft.model.layers[own].load_state_dict(target.model.layers[theirs].state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    vectors = torch.where(taught[:, None], target.model.embed_tokens.weight, fresh_vectors)
    draft.model.embed_tokens.load_state_dict({"weight": vectors})
    return draft


def fresh_decoder(config: DecoderConfig, *, seed: int) -> Decoder:
    """A decoder with seeded random weights whose layers begin as the identity."""
    chance = torch.Generator().manual_seed(seed)
    decoder = Decoder(config)
    for name, weight in decoder.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(weight)
        elif weight.dim() == 2:
            torch.nn.init.normal_(weight, std=INITIAL_SPREAD, generator=chance)
    return decoder


def sharpened(decoder: Decoder, factor: float) -> Decoder:
    """The decoder, in place, with all its logits multiplied by ``factor``: the last norm's weights carry it."""
    with torch.no_grad():
        decoder.model.norm.weight.mul_(factor)
    return decoder


def text_loss(decoder: Decoder, windows: Tensor) -> Tensor:
    """Mean cross-entropy, in nats per token, of ``windows`` [batch, time + 1]."""
    logits = decoder(windows[:, :-1], _positions(windows), causal_attention)
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def distillation_loss(target: Decoder, taught: Tensor) -> Loss:
    """The divergence of a draft from ``target`` on windows [batch, time + 1], the last column unused.

    The target's law is first restricted to the tokens of ``taught`` [vocab] bool: what else it knows is not passed on.
    """

    def loss(draft: Decoder, windows: Tensor) -> Tensor:
        with torch.no_grad():
            logits = target(windows[:, :-1], _positions(windows), causal_attention).flatten(0, 1)
            wanted = logits.masked_fill(~taught, UNTAUGHT).log_softmax(-1)
        given = draft(windows[:, :-1], _positions(windows), causal_attention).flatten(0, 1).log_softmax(-1)
        divergence = functional.kl_div(given, wanted, log_target=True, reduction="batchmean")
        return divergence + ARGMAX_SHARE * functional.nll_loss(given, wanted.argmax(-1))

    return loss


def learn(  # the loop of the whole file: what varies between its two uses is its arguments
    decoder: Decoder, stream: Tensor, loss: Loss, *, schedule: Schedule, checkpoint: Path, report: Report
) -> None:
    """Train ``decoder`` in place on windows of ``stream`` [tokens]; goes on from ``checkpoint`` if that exists."""
    optimizers = _optimizers(decoder, schedule)
    begun = _resume(decoder, optimizers, checkpoint)
    started, smoothed = perf_counter(), None
    for step in range(begun, schedule.steps):
        value = loss(decoder, _windows(stream, schedule, step))
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        _move(decoder, optimizers, schedule.rate(step))
        smoothed = value.item() if smoothed is None else 0.95 * smoothed + 0.05 * value.item()
        if (step + 1) % 25 == 0 or step + 1 == schedule.steps:
            pace = (perf_counter() - started) / (step + 1 - begun)
            left = pace * (schedule.steps - step - 1) / 60
            report(f"step {step + 1}/{schedule.steps} loss {smoothed:.3f} {pace:.2f} s a step, {left:.0f} min left")
            _keep(decoder, optimizers, checkpoint, step + 1)


def _positions(windows: Tensor) -> Tensor:
    return torch.arange(windows.shape[1] - 1)


def _windows(stream: Tensor, schedule: Schedule, step: int) -> Tensor:
    """Random windows [batch, window + 1] that depend on the step alone, so that a resumed run sees the same."""
    window = schedule.window_at(step)
    chance = torch.Generator().manual_seed(step)
    starts = torch.randint(len(stream) - window, (schedule.batch_tokens // window,), generator=chance)
    return stream[starts[:, None] + torch.arange(window + 1)]


def _optimizers(decoder: Decoder, schedule: Schedule) -> list[torch.optim.Optimizer]:
    matrices = [weight for name, weight in decoder.named_parameters() if name.endswith("_proj.weight")]
    others = [weight for name, weight in decoder.named_parameters() if not name.endswith("_proj.weight")]
    adam = torch.optim.AdamW(others, lr=schedule.vector_rate, betas=(0.9, 0.97), weight_decay=0.0, fused=True)
    return [Muon(matrices, lr=schedule.matrix_rate), adam]


def _move(decoder: Decoder, optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_rate"] = group.get("full_rate", group["lr"])
            group["lr"] = group["full_rate"] * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _keep(decoder: Decoder, optimizers: list[torch.optim.Optimizer], checkpoint: Path, step: int) -> None:
    unfinished = checkpoint.with_suffix(".part")
    torch.save(
        {"step": step, "decoder": decoder.state_dict(), "optimizers": [one.state_dict() for one in optimizers]},
        unfinished,
    )
    unfinished.replace(checkpoint)


def _resume(decoder: Decoder, optimizers: list[torch.optim.Optimizer], checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    kept = torch.load(checkpoint, weights_only=True)
    decoder.load_state_dict(kept["decoder"])
    for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return int(kept["step"])


def held_out_loss(decoder: Decoder, stream: Tensor, *, window: int = 256) -> float:
    """Mean cross-entropy, nats per token, over ``stream`` [tokens] cut into windows."""
    cut = stream[: (len(stream) - 1) // window * window + 1]
    windows = cut.unfold(0, window + 1, window)
    with torch.inference_mode():
        return float(text_loss(decoder, windows))
