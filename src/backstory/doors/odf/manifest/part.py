"""What all parts of a manifest share: exact field names, and kinds in any of three cases (section 1.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from backstory.documents import TAG, nearest_name

# Where the schema of a union keeps the kinds that may stand alone.
ALONE: Final = "kinds-alone"


def _kind_is_required(schema: dict[str, Any]) -> None:
    """Ask editors for the kind, which Python fills in by itself."""
    if "kind" in schema.get("properties", {}):
        schema["required"] = sorted({"kind", *schema.get("required", ())})


class ManifestPart(BaseModel):
    """A part of the document: unknown fields are an error, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, json_schema_extra=_kind_is_required
    )


@dataclass(frozen=True, slots=True)
class AnyCase:
    """Marks a word that is written in any case: `SetInfo`, `setInfo` and `setinfo` are one."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What pydantic validates the word with."""
        return core_schema.no_info_before_validator_function(self._canonical_name, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        """The three spellings that editors offer."""
        return {"type": "string", "enum": spellings(self.names)}

    def _canonical_name(self, value: Any) -> Any:
        known = {name.lower(): name for name in self.names}
        return known.get(value.lower(), value) if isinstance(value, str) else value


def any_case(*names: str) -> AnyCase:
    """Take the three spellings for the same name, one of these."""
    return AnyCase(names)


def any_case_of(enum: type[StrEnum]) -> AnyCase:
    """The same for the words of an enumeration."""
    return AnyCase(tuple(word.value for word in enum))


def spellings(names: Sequence[str]) -> list[str]:
    """Each name in PascalCase, camelCase and lower case."""
    return list(
        dict.fromkeys(each for name in names for each in (name, name[:1].lower() + name[1:], name.lower()))
    )


@dataclass(frozen=True, slots=True)
class ByKind:
    """Marks a union of parts that `kind` tells apart; with `short` the kind may stand alone as a text.

    `noun` is what the union is called in errors; `refused` has, by kind in lower case, the reason and
    the remedy of kinds that there are or were, but not here.
    """

    noun: str
    short: bool = False
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What pydantic validates the union with."""
        models = _models(source)
        union = core_schema.tagged_union_schema(
            {TAG + kind.lower(): handler.generate_schema(model) for kind, model in models.items()},
            discriminator=_tag_of,
        )
        kinds = tuple(models)
        alone = tuple(
            kind
            for kind, model in models.items()
            if self.short and not any(each.is_required() for each in model.model_fields.values())
        )
        return core_schema.no_info_before_validator_function(
            lambda value: self._check_kind(value, kinds),
            union,
            metadata={ALONE: alone},
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The union, and the kinds that may stand alone."""
        alone = schema.get("metadata", {}).get(ALONE, ())
        union = handler(schema)
        return {"anyOf": [{"type": "string", "enum": spellings(alone)}, union]} if alone else union

    def _check_kind(self, value: Any, kinds: tuple[str, ...]) -> Any:
        """The value, if it has a kind that the union knows."""
        if isinstance(value, ManifestPart):
            return value
        alone = self.short and isinstance(value, str)
        node = {"kind": value} if alone else value
        if not isinstance(node, Mapping):
            raise _wrong(f"this {self.noun} is not a mapping with a kind", f"Kinds are {', '.join(kinds)}.")
        if not isinstance(node.get("kind"), str):
            raise _wrong(f"this {self.noun} has no kind", f"Kinds are {', '.join(kinds)}.")
        kind = node["kind"]
        path = () if alone else ("kind",)
        if kind.lower() in self.refused:
            raise _wrong(*self.refused[kind.lower()], path)
        if kind.lower() not in {each.lower() for each in kinds}:
            raise _wrong(f"{kind!r} is not a kind of {self.noun}", nearest_name(kind, kinds), path)
        return node


def wrong(why: str, remedy: str, *path: str) -> PydanticCustomError:
    """What a validator raises: a clause, a sentence that says what to do, and the key it is about."""
    return _wrong(why, remedy, path)


def _wrong(why: str, remedy: str, path: tuple[str, ...] = ()) -> PydanticCustomError:
    return PydanticCustomError("wrong_part", "{why}", {"why": why, "remedy": remedy, "at": path})


def _models(source: Any) -> dict[str, type[BaseModel]]:
    return {model.model_fields["kind"].default: model for model in get_args(source) or (source,)}


def _tag_of(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", "")
    return TAG + str(kind).lower()
