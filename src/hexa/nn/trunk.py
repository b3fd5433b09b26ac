"""The part of an encoder that does not learn: its maps of a view never change, so they are computed once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from hexa.core import MAIN, Batch, Method
from hexa.core.example import Autocast
from hexa.nn.branch_norm import use_branch
from hexa.nn.encoder import Encoder


class Maps(Batch):
    """A batch with maps or tokens of its crops, of any values, in their place."""

    ranks = (3, 4)

    def check_values(self) -> None:
        """Accept any values: maps are not pixels in [0, 1]."""

    def repeated(self, times: int) -> Maps:
        """Every image that number of times, to time a step of many."""
        crops = tuple(torch.cat([crop] * times) for crop in self.crops)
        return Maps(crops, self.index.repeat(times), self.stream, self.step, self.known)


class _Reached(Exception):
    """Ends a pass in front of the first module that learns; carries that module's input."""

    def __init__(self, maps: Tensor) -> None:
        super().__init__()
        self.maps = maps


class Trunk:
    """Normalisation and the part of a backbone before the first module that learns.

    From then on the encoder takes the trunk's maps [B, C, h, w], or tokens [B, N, D], instead of pixels. `backbone`
    alone still takes pixels.
    """

    def __init__(
        self,
        encoder: Encoder,
        modules: Sequence[nn.Module],
        above: Sequence[nn.Module],
        autocast: Autocast,
    ) -> None:
        self.encoder = encoder
        self.modules = modules
        self.above = above
        self.autocast = autocast
        self._seen = dict[torch.Size, tuple[Tensor, list[Tensor | None]]]()
        """For each shape of maps: pixels of one image, and the output of each module of the trunk for it."""

    @classmethod
    def of(
        cls,
        method: Method,
        learns: Callable[[nn.Parameter], bool],
        pixels: Tensor,
        autocast: Autocast,
    ) -> Trunk | None:
        """The trunk of the encoder of a method that `embeds_plainly`; None if it has none, or there is a twin.

        learns: whether a parameter ever does. pixels: [B, C, S, S]. Features that are computed from the trunk's maps
        of these must equal those of the whole backbone, which excludes networks that lead something around a module.
        """
        encoder, *others = (module for module in method.modules() if isinstance(module, Encoder))
        if others or any(map(learns, encoder.backbone.parameters(recurse=False))):
            return None
        parts = (
            part if isinstance(part, nn.Sequential | nn.ModuleList) else [part]
            for part in encoder.backbone.children()
        )
        units = list(itertools.chain.from_iterable(parts))
        modules = list(
            itertools.takewhile(lambda unit: not any(map(learns, unit.parameters())), units)
        )
        if len(modules) == len(units) or not any(list(unit.parameters()) for unit in modules):
            return None
        trunk = cls(encoder, modules, units[len(modules) :], autocast)
        # a network that calls its modules in another order may refuse the maps
        with (
            suppress(RuntimeError, TypeError, ValueError),
            torch.no_grad(),
            autocast(),
            use_branch(encoder),
        ):
            maps = trunk._maps(pixels)
            if torch.equal(trunk._features(maps), encoder.features(pixels)):
                encoder.features = trunk._features  # type: ignore[assignment, method-assign]
                return trunk
        return None

    def remove(self) -> None:
        """Let the encoder take pixels again."""
        del self.encoder.features

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Maps:
        """The maps of its crops."""
        with self.autocast(), use_branch(self.encoder, MAIN, len(batch)):
            return Maps(
                tuple(map(self._maps, batch.crops)),
                batch.index,
                batch.stream,
                batch.step,
                batch.known,
            )

    def _maps(self, pixels: Tensor) -> Tensor:
        """The input of the first module that learns. Raises RuntimeError if another one that may learn comes first."""
        given: list[Tensor | None] = [None] * len(self.modules)

        def keep(place: int, _: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor):
                given[place] = output[:1].clone()

        def end(unit: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if unit is self.above[0]:
                raise _Reached(inputs[0])
            raise RuntimeError(f"{type(unit).__name__} is called before the end of the trunk")

        handles = [
            module.register_forward_hook(functools.partial(keep, place))
            for place, module in enumerate(self.modules)
        ]
        handles += [
            unit.register_forward_pre_hook(end)
            for unit in self.above
            if unit is self.above[0] or list(unit.parameters())
        ]
        try:
            self.encoder.backbone(self.encoder.normalize(pixels))
        except _Reached as found:
            self._seen[found.maps.shape[1:]] = torch.zeros_like(pixels[:1]), given
            return found.maps
        finally:
            for handle in handles:
                handle.remove()
        raise RuntimeError(f"{type(self.above[0]).__name__} is not called")

    def _features(self, maps: Tensor) -> Tensor:
        """Features of maps. The trunk's modules answer what they gave for one image, so that the backbone goes on."""
        pixels, given = self._seen[maps.shape[1:]]
        answering = list[nn.Module]()
        handle = self.above[0].register_forward_pre_hook(lambda _, inputs: (maps, *inputs[1:]))
        try:
            for module, answer in zip(self.modules, given, strict=True):
                if answer is not None:
                    module.forward = functools.partial(_answer, answer)
                    answering.append(module)
            features: Tensor = self.encoder.backbone(pixels)
        finally:
            handle.remove()
            for module in answering:
                del module.forward
        return features


def _answer(answer: Tensor, *_: object, **__: object) -> Tensor:
    """The answer, whatever is asked."""
    return answer
