"""The complete, typed description of a run, which a recipe returns and config.yaml stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from hexa.config import Config, ConfigError, UserError, choices, choose, field_error, nearest
from hexa.core import HardExample, MethodConfig
from hexa.data.views.making import ViewsConfig
from hexa.nn.backbones import NetworkConfig
from hexa.objective import ObjectiveConfig
from hexa.objective.shares import onsets
from hexa.runtime import parsing
from hexa.runtime.files import write_text
from hexa.training.config import TrainingConfig
from hexa.training.monitor import MonitorConfig
from hexa.training.optimizers import OptimizerConfig
from hexa.training.schedules import ScheduleConfig
from hexa.weights.start import StartConfig


class Experiment(Config):
    """All settings of a run. `config.yaml` stores them completely, and `--config` reads them again."""

    recipe: str
    """Name of the recipe of this experiment."""
    data: str
    """Source of images: digits, folder:PATH, parquet:PATH, cifar10, … (SOURCE#NAME picks a split)."""
    images: int | None = pydantic.Field(default=None, gt=0)
    """Number of images to draw by the seed, evenly from the classes if there are labels; none uses all images."""
    seed: int = pydantic.Field(default=0, ge=0)
    """Seed of every random stream."""
    epochs: int = pydantic.Field(gt=0)
    """Number of passes over the data."""
    max_steps: int | None = pydantic.Field(default=None, gt=0)
    """Number of steps after which the run ends; none ends with the last epoch. Schedules depend on `epochs` alone."""
    batch_size: int = pydantic.Field(gt=0)
    """Number of images per step, over all processes."""
    network: NetworkConfig
    start: StartConfig = StartConfig()
    views: ViewsConfig
    method: pydantic.SerializeAsAny[MethodConfig]
    hard_examples: dict[str, pydantic.SerializeAsAny[HardExample]] = {}
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    training: TrainingConfig = TrainingConfig()
    monitor: MonitorConfig = MonitorConfig()

    @pydantic.field_validator("method", mode="before")
    @classmethod
    def _method(cls, value: Any) -> MethodConfig:
        return choose(MethodConfig, "name", "hexa.methods", value)

    @pydantic.field_validator("hard_examples", mode="before")
    @classmethod
    def _hard_examples(cls, value: Any) -> dict[str, HardExample]:
        """Parse each entry by its `kind`; the key is the default kind, and an empty entry is left out."""
        if not isinstance(value or {}, Mapping):
            raise field_error(
                "", "expected hard examples by name, for instance {cutmix: {weight: 1}}"
            )
        examples = {}
        problems = []
        for name, entry in dict(value or {}).items():
            if entry is None:
                continue
            try:
                examples[name] = choose(
                    HardExample, "kind", "hexa.hard_examples", entry, default=name
                )
            except ConfigError as error:
                problems += [
                    (f"{name}.{path}".rstrip("."), message) for path, message in error.problems
                ]
        if problems:
            raise ConfigError(problems)
        return examples

    def essence(self, exclude: set[str] | dict[str, Any]) -> list[Any]:
        """Return fields that differ from their default, as JSON, and the kinds of method and hard examples by name.

        Hashes use this form, so that a new field in a later version does not change a hash.
        """
        kinds = [hard.kind for _, hard in sorted(self.hard_examples.items())]
        return [
            self.model_dump(mode="json", exclude=exclude, exclude_defaults=True),
            [self.method.name, *kinds],
        ]

    @pydantic.model_validator(mode="after")
    def _sources_exist(self) -> Experiment:
        onsets(self.hard_examples)
        return self


#: Return the experiment of a mapping of fields. Raises ConfigError that names each invalid field.
validate = Experiment.from_fields


def override(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment with some fields changed.

    changes: dotted path -> value, or text that is read as YAML, such as {"method.temperature": "0.1"}. Setting a field
    of a missing hard example adds the hard example; setting a hard example to `none` removes it. A new `method.name`
    resets all fields of the method to their defaults. A new `views.size` is also the image size of features, unless
    `views.test_scale` is given. Raises ConfigError.
    """
    fields = experiment.model_dump(mode="json")
    problems = []
    if "views.size" in changes:
        fields["views"]["test_scale"] = 1.0
    if (method := changes.get("method.name", experiment.method.name)) != experiment.method.name:
        known = choices(MethodConfig, "name", "hexa.methods").get(str(method))
        defaults = (
            {} if known is None else {key: info.default for key, info in known.model_fields.items()}
        )
        fields["method"] = {"name": method} | {
            key: {} for key, value in defaults.items() if isinstance(value, Config)
        }
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = fields
        for depth, part in enumerate(parents):
            if part not in place and parents[:depth] == ["hard_examples"]:
                place[part] = {}
            inner = place.get(part)
            if not isinstance(inner, dict):
                remedy = "it has no fields" if part in place else nearest(part, place)
                problems.append((path, f"unknown field '{part}'; {remedy}"))
                break
            place = inner
        else:
            place[last] = parsing.from_option(value) if isinstance(value, str) else value
    if problems:
        raise ConfigError(problems)
    return validate(fields)


def load(path: Path | str) -> Experiment:
    """Read an experiment from a YAML file. Raises UserError that names the file and the field."""
    try:
        return validate(fields_of(Path(path)))
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None


def fields_of(path: Path, within: Path | None = None) -> dict[str, Any]:
    """Read the fields of a config.yaml without validation. Raises UserError that names the file.

    within: a folder that must contain the file after resolving links.
    """
    try:
        fields = parsing.from_yaml(parsing.read_text(path, parsing.MOST_YAML, within))
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}; give the path of a config.yaml"
        ) from None
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} has no fields; give a config.yaml with fields, like that of a run")
    return fields


def dump(experiment: Experiment, path: Path) -> None:
    """Write the complete experiment to a YAML file, atomically."""
    write_text(
        path,
        yaml.dump(
            experiment.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True
        ),
    )


class _Dumper(yaml.SafeDumper):
    """A YAML writer without aliases, which the reader refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
