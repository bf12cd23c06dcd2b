"""The base of all parts of a manifest: exact field names, and kinds in three spellings (section 1.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from backstory.documents import TAG, nearest_name

# The metadata of a union's schema with the kinds that may be written as a plain string.
SHORT_KINDS: Final = "kinds-alone"


def _kind_is_required(schema: dict[str, Any]) -> None:
    """Make `kind` required in editors, although Python has a default for it."""
    if "kind" in schema.get("properties", {}):
        schema["required"] = sorted({"kind", *schema.get("required", ())})


class ManifestPart(BaseModel):
    """A part of the document: frozen, and unknown fields are an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, json_schema_extra=_kind_is_required
    )


@dataclass(frozen=True, slots=True)
class AnyCase:
    """A marker for words with three spellings: `SetInfo`, `setInfo` and `setinfo` are the same."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replace any spelling by the name before pydantic validates it."""
        return core_schema.no_info_before_validator_function(self._canonical_name, handler(source))

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> dict[str, Any]:
        """List all spellings in the JSON Schema, for editors."""
        return {"type": "string", "enum": spellings(self.names)}

    def _canonical_name(self, value: Any) -> Any:
        known = {name.lower(): name for name in self.names}
        return known.get(value.lower(), value) if isinstance(value, str) else value


def any_case(*names: str) -> AnyCase:
    """Accept the three spellings of these names."""
    return AnyCase(names)


def any_case_of(enum: type[StrEnum]) -> AnyCase:
    """Accept the three spellings of the words of an enumeration."""
    return AnyCase(tuple(word.value for word in enum))


def spellings(names: Sequence[str]) -> list[str]:
    """Each name in PascalCase, camelCase and lower case."""
    return list(
        dict.fromkeys(
            spelling for name in names for spelling in (name, name[:1].lower() + name[1:], name.lower())
        )
    )


@dataclass(frozen=True, slots=True)
class ByKind:
    """A marker for a union of parts that `kind` distinguishes.

    If `short`, a string is accepted as the kind. `noun` is the name of the union in errors. `refused` has the
    reason and the remedy for each refused kind, in lower case. These are kinds of other versions, and kinds
    that a manifest must not contain.
    """

    noun: str
    short: bool = False
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the kind, then validate the part of that kind."""
        models = _models(source)
        union = core_schema.tagged_union_schema(
            {TAG + kind.lower(): handler.generate_schema(model) for kind, model in models.items()},
            discriminator=_tag_of,
        )
        kinds = tuple(models)
        short_kinds = tuple(
            kind
            for kind, model in models.items()
            if self.short and not any(field.is_required() for field in model.model_fields.values())
        )
        return core_schema.no_info_before_validator_function(
            lambda value: self._check_kind(value, kinds),
            union,
            metadata={SHORT_KINDS: short_kinds},
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema of the union, including the kinds that may be a plain string."""
        short_kinds = schema.get("metadata", {}).get(SHORT_KINDS, ())
        union = handler(schema)
        return (
            {"anyOf": [{"type": "string", "enum": spellings(short_kinds)}, union]} if short_kinds else union
        )

    def _check_kind(self, value: Any, kinds: tuple[str, ...]) -> Any:
        """The value, if its kind is in the union. Raises an error for any other value."""
        if isinstance(value, ManifestPart):
            return value
        is_text = self.short and isinstance(value, str)
        node = {"kind": value} if is_text else value
        if not isinstance(node, Mapping):
            raise _wrong(f"this {self.noun} is not a mapping with a kind", f"Kinds are {', '.join(kinds)}.")
        if not isinstance(node.get("kind"), str):
            raise _wrong(f"this {self.noun} has no kind", f"Kinds are {', '.join(kinds)}.")
        kind = node["kind"]
        path = () if is_text else ("kind",)
        if kind.lower() in self.refused:
            raise _wrong(*self.refused[kind.lower()], path)
        if kind.lower() not in {known.lower() for known in kinds}:
            raise _wrong(f"{kind!r} is not a kind of {self.noun}", nearest_name(kind, kinds), path)
        return node


def wrong(why: str, remedy: str, *path: str) -> PydanticCustomError:
    """The error that a validator raises, with a clause, a remedy, and the key that is wrong."""
    return _wrong(why, remedy, path)


def _wrong(why: str, remedy: str, path: tuple[str, ...] = ()) -> PydanticCustomError:
    return PydanticCustomError("wrong_part", "{why}", {"why": why, "remedy": remedy, "at": path})


def _models(source: Any) -> dict[str, type[BaseModel]]:
    return {model.model_fields["kind"].default: model for model in get_args(source) or (source,)}


def _tag_of(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", "")
    return TAG + str(kind).lower()
