"""The JSON Schema of recipes, by which editors complete and check."""

from typing import Any

from mergekit_rl.recipe.schema import MergeRecipe
from mergekit_rl.registry import Setting, methods

_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string"}


def json_schema() -> dict[str, Any]:
    """A schema of one document of a merge recipe, with every method and setting that is
    registered."""
    schema = MergeRecipe.model_json_schema()
    known = methods()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "rledit merge recipe"
    name = {
        "description": "The merge method.",
        "oneOf": [{"const": one.name, "description": one.summary} for one in known.values()],
    }
    schema["properties"]["merge_method"] = name
    schema["properties"]["method"] = name
    schema["required"] = [key for key in schema.get("required", ()) if key != "merge_method"]
    schema["anyOf"] = [{"required": ["merge_method"]}, {"required": ["method"]}]
    settings: dict[str, dict[str, Any]] = {}
    for one in known.values():
        for setting in one.settings.values():
            found = settings.setdefault(setting.name, {"anyOf": [], "description": ""})
            for form in _forms(setting):
                if form not in found["anyOf"]:
                    found["anyOf"].append(form)
            words = f"{one.name}: {setting.expected}. "
            found["description"] += words
    parameters = {"type": "object", "properties": settings}
    for place in (schema, *schema.get("$defs", {}).values()):
        if "parameters" in place.get("properties", {}):
            place["properties"]["parameters"] = parameters
    return schema


def _forms(setting: Setting) -> list[dict[str, Any]]:
    """A plain value, a gradient of numbers, a list of filters."""
    if setting.parsed is not None:
        plain: dict[str, Any] = {}
    elif setting.choices:
        plain = {"enum": list(setting.choices)}
    else:
        plain = {"type": _TYPES[setting.kind]}
    values = [plain]
    if setting.kind is float:
        values.append({"type": "array", "items": plain, "minItems": 1})
    one = {
        "type": "object",
        "properties": {"filter": {"type": "string"}, "value": {"anyOf": values}},
        "required": ["value"],
        "additionalProperties": False,
    }
    return [*values, {"type": "array", "items": one, "minItems": 1}]
