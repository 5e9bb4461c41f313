"""Rows of a table: variables, defaults, and one row for each combination of values. matrix.py describes the format."""

import itertools
import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYS = set("name limit command shell args env let each needs exit says not verify least then leaves beside ranks signal gives optional reads record "
           "stdout header merge finish always jobs when group matching cell retry skip".split())
OF_GROUP = {"rows", "use", "matching"}
FIELD = re.compile(r"(?<!\{)\{(=[^{}]+|\$?\w+)\}(?!\})")


class Invalid(Exception):
    """A table or an option is wrong."""


class Lazy(dict):
    """Variables for an expression."""

    def __getitem__(self, name):
        value = dict.__getitem__(self, name)
        value = fill(value, self) if isinstance(value, str) else value
        return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value


def fill(text, names):
    """Replaces the variables in `text`, and in their values."""
    def value(match):
        word = match[1]
        try:
            if word[0] == "=":
                return str(eval(word[1:], {"__builtins__": {"str": str}}, Lazy(names)))
            return os.environ.get(word[1:], "") if word[0] == "$" else fill(str(names[word]), names)
        except (KeyError, NameError, SyntaxError, TypeError, AttributeError) as error:
            raise Invalid(f"{match[0]} in {text!r}: {error}") from None
    return FIELD.sub(value, text)


def filled(text, names):
    return fill(str(text), names).replace("{{", "{").replace("}}", "}")


def as_list(value, names=None):
    """Returns a list: of one value, or of what a text like "{name}" names."""
    if isinstance(value, str) and names is not None and (named := FIELD.fullmatch(value)) and isinstance(names.get(named[1]), list):
        return names[named[1]]
    return value if isinstance(value, list) else [value] if value not in ("", None) else []


def combinations(each, names):
    """Returns the variables of each combination of values."""
    choices = []
    for name, values in each.items():
        if isinstance(values, str) and isinstance(values := as_list(values, names), list) and len(values) == 1 and isinstance(values[0], str):
            first, dots, last = filled(values[0], names).partition("..")
            values = list(range(int(first), int(last) + 1)) if dots else first.split()
        choices.append([value if isinstance(value, dict) else {name: value} for value in values])
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*choices)]


def load(name):
    path = Path(name) if name.endswith(".toml") else ROOT / "scripts/tables" / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text()) | {"stem": path.stem}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path}: {error}") from None


def merged(*parts):
    """Merges rows. Variables and environments are merged as well; a later one wins."""
    row = {}
    for part in parts:
        row |= {key: row.get(key, {}) | value if key in ("let", "env") else value for key, value in part.items()}
    return row


def variables(table, device):
    """Returns the variables of a table for this device."""
    own = table.get("vars", {})
    return {name: value for name, value in own.items() if not isinstance(value, dict)} | own.get(device, {})


def listed(table, group, names):
    """Returns the rows of a group with their defaults, and those of another table that it uses, whose variables are added to `names`."""
    own = {key: value for key, value in group.items() if key not in OF_GROUP}
    if "use" not in group:
        default, own["group"] = {"name": "{group}-{number}"}, own.pop("name", "")
        return [merged(default, table.get("row", {}), own, row) for row in group.get("rows", [])]
    other = load(group["use"])
    for name, value in variables(other, names["device"]).items():
        names.setdefault(name, value)
    own.pop("name", None)
    rows = [row for theirs in other["group"] if "use" not in theirs for row in listed(other, theirs, names)]
    return [merged(row, own, {"each": row.get("each", {}) | own.get("each", {}), "matching": group.get("matching", "")}) for row in rows]


def expand(table, names):
    """Returns the rows of a table in order, one for each combination of variables."""
    rows = []
    if "group" not in table:
        raise Invalid(f"{table['stem']}: no group of rows")
    for row in [row for group in table["group"] for row in listed(table, group, names)]:
        if unknown := set(row) - KEYS:
            raise Invalid(f"{table['stem']}: unknown key {sorted(unknown)[0]}")
        for own in combinations(row.get("each", {}), names):
            one = row | {"number": len(rows) + 1, "let": row.get("let", {}) | own, "args": row.get("args", "")}
            all_names = names | one["let"] | {"number": one["number"], "group": row["group"]}
            one["name"] = filled(row["name"], all_names)
            if filled(row.get("when", "True"), all_names) in ("", "False"):
                continue
            if "matching" not in row or re.search(row["matching"], f"{row['group']}/{fill(one['args'], all_names)}"):
                rows.append(one)
    twice = [name for name, some in itertools.groupby(sorted(row["name"] for row in rows)) if len(list(some)) > 1]
    if twice:
        raise Invalid(f"{table['stem']}: several rows are named {twice[0]}")
    return rows
