"""The Lua files as text: headers, parts, spelling of keys, and a script and a method for each verb."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from prefork_q.broker import Broker
from prefork_q.inspector import Inspector
from prefork_q.keys import CHANNEL, TABLE, Keys
from prefork_q.scripts import Script, parse, scripts
from prefork_q.states import FUSED, TRANSITIONS

FOLDER = files("prefork_q") / "lua"
PARTS = {path.name.removesuffix(".lua"): path.read_text("utf-8") for path in (FOLDER / "parts").iterdir()}
TEXTS = {name: (FOLDER / f"{name}.lua").read_text("utf-8") for name in scripts()}

DEFINITION = re.compile(r"^local (?:function )?([\w, ]+?)(?: =|\(|$)", re.MULTILINE)
HEADER = """\
-- open: open a thing,
-- carefully.
--
-- KEYS[1]  root
-- ARGV[1]  id
-- ARGV     then two a task: a word,
--          and another
-- returns  ok | missing
-- uses     keys clock
"""


def code(text: str) -> str:
    """The text without its comments and strings."""
    return re.sub(r"--.*|\"[^\"\n]*\"|'[^'\n]*'", "", text)


def defined_in(part: str) -> set[str]:
    """The names that a part gives to what stands after it."""
    found = DEFINITION.findall(code(PARTS[part]))
    return {name.strip() for names in found for name in names.split(",")}


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code(text)))


# -- headers


def test_a_header_is_read_as_it_is_written() -> None:
    script = parse("open", HEADER + "return 1", {"keys": "local root", "clock": "local now"})

    assert script.summary == "open a thing, carefully."
    assert script.keys == ("root",)
    assert script.argv == ("id", "then two a task: a word, and another")
    assert script.returns == "ok | missing"
    assert script.uses == ("keys", "clock")
    assert script.source.decode() == "local root\nlocal now\n" + HEADER + "return 1"


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (HEADER.replace("-- open:", "-- shut:"), "open.lua: the first line must read '-- open:"),
        ("return 1\n" + HEADER, "open.lua: the first line"),
        (HEADER.replace("-- KEYS[1]  root\n", ""), "no line 'KEYS"),
        (HEADER.replace("-- returns  ok | missing\n", ""), "no line 'returns"),
        (HEADER.replace("-- uses     keys clock\n", ""), "no line 'uses"),
        (HEADER.replace("keys clock", "keys clocks"), "uses clocks, which lua/parts does not have"),
    ],
)
def test_a_wrong_header_is_refused_by_name(broken: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse("open", broken, {"keys": "", "clock": ""})


@pytest.mark.parametrize("script", scripts().values(), ids=list(scripts()))
def test_every_script_is_described(script: Script) -> None:
    assert script.summary.endswith(".")
    assert script.keys == ("root",)
    assert script.returns
    assert script.sha == hashlib.sha1(script.source).hexdigest().encode()


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_described_and_used(name: str) -> None:
    assert PARTS[name].startswith(f"-- {name}: ")
    assert any(name in script.uses for script in scripts().values())


def test_a_call_goes_by_sha_or_by_source_with_the_root_as_its_only_key() -> None:
    script = scripts()["pause"]
    root = Keys("n").root

    assert script.by_sha(root, "low") == (b"EVALSHA", script.sha, 1, "pq:{n}:", "low")
    assert script.by_source(root, "low") == (b"EVAL", script.source, 1, "pq:{n}:", "low")


# -- parts


@pytest.mark.parametrize("script", scripts().values(), ids=list(scripts()))
def test_what_a_script_takes_from_parts_it_names_and_what_it_names_it_takes(script: Script) -> None:
    offered = {part: defined_in(part) for part in PARTS}
    before: set[str] = set()
    for part in script.uses:
        missing = {
            name
            for other, names in offered.items()
            if other != part and other not in before
            for name in names & words(PARTS[part])
        } - offered[part] - _locals(PARTS[part]) - {name for done in before for name in offered[done]}
        assert not missing, f"{part} needs {missing}, which comes later or not at all"
        before.add(part)
    taken = words(TEXTS[script.name])
    missing = {
        name for part, names in offered.items() if part not in before for name in names & taken
    } - _locals(TEXTS[script.name]) - {name for part in before for name in offered[part]}
    assert not missing, f"{script.name}.lua needs {missing}"
    needed = taken | {word for part in script.uses for word in words(PARTS[part])}
    # `rights` does all by being there.
    for part in set(script.uses) - {"rights"}:
        others = taken | {word for other in script.uses if other != part for word in words(PARTS[other])}
        assert offered[part] & others & needed, f"{script.name}.lua uses {part} for nothing"


def _locals(text: str) -> set[str]:
    """Names that a text gives itself, inside of functions too."""
    found = re.findall(r"local (?:function )?([\w, ]+?)(?= =|\(|\n|$)|for ([\w, ]+) (?:=|in)", code(text))
    parameters = re.findall(r"function \w*\(([\w, ]*)\)", code(text))
    groups = [group for pair in found for group in pair] + parameters
    return {name.strip() for names in groups for name in names.split(",")}


# -- keys


def spelled() -> dict[str, str]:
    """Each name of a key that a Lua file spells, and the file."""
    found = {}
    for file, text in {**PARTS, **TEXTS}.items():
        for name in re.findall(r"\broot \.\. \"([^\"]+)\"", text):
            found[name] = file
    return found


def test_every_key_of_the_table_is_spelled_in_a_script_and_none_else() -> None:
    patterns = {re.sub(r"<\w+>", "", key.pattern) for key in TABLE}
    channel = re.sub(r"<\w+>", "", CHANNEL)

    assert set(spelled()) == patterns | {channel}


def test_keys_are_named_by_the_root_alone() -> None:
    for name, text in {**PARTS, **TEXTS}.items():
        if name != "keys":
            assert "KEYS[" not in code(text), name
        assert "pq:" not in text, name


def test_methods_of_keys_spell_as_the_table_does() -> None:
    keys = Keys("n")
    patterns = {key.pattern for key in TABLE} | {CHANNEL}

    for method, argument in [
        ("pending", "<queue>"), ("wake", "<queue>"), ("task", "<id>"), ("body", "<id>"), ("ended", "<id>"),
        ("claim", "<worker>"),
    ]:  # fmt: skip
        name = getattr(keys, method)(argument)
        assert name.startswith("pq:{n}:")
        assert name.removeprefix("pq:{n}:") in patterns
        assert keys(name.removeprefix("pq:{n}:")) == name


# -- verbs


@pytest.mark.parametrize("verb", sorted({row.verb for row in TRANSITIONS}))
def test_every_verb_has_a_script_and_a_method(verb: str) -> None:
    assert verb in scripts()
    assert callable(getattr(Broker, verb))


@pytest.mark.parametrize("name", scripts())
def test_every_script_has_a_method_that_calls_it(name: str) -> None:
    names = {"counts": "counts", "show": "get", "page": "page"}
    assert callable(getattr(Broker, name, None) or getattr(Inspector, names.get(name, name), None))


def test_fused_scripts_are_made_of_their_verbs() -> None:
    for name, verbs in FUSED.items():
        for verb in verbs:
            assert set(scripts()[verb].uses) <= set(scripts()[name].uses)


# -- what scripts may do


@pytest.mark.parametrize("script", scripts().values(), ids=list(scripts()))
def test_a_script_that_writes_looks_at_its_rights_first(script: Script) -> None:
    writes = "Changes nothing" not in script.summary

    assert ("rights" in script.uses) is writes
    assert (b"local function own_commands" in script.source) is writes

COMMANDS = {
    "DEL", "EXISTS", "EXPIRE", "GET", "HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HMGET", "HSCAN",
    "HSET", "HSETNX", "LLEN", "LPUSH", "LRANGE", "LTRIM", "PEXPIREAT", "PUBLISH", "RENAMENX", "RPUSH",
    "SADD", "SET", "SETNX", "SISMEMBER", "SREM", "TIME", "UNLINK", "ZADD", "ZCARD", "ZCOUNT", "ZRANGE",
    "ZRANGEBYSCORE", "ZREM", "ZREMRANGEBYRANK", "ZREVRANGE", "ZSCORE",
}  # fmt: skip
"""All in Redis 6.2 and before. None walks a whole key space or set, takes from the middle of a list,
blocks, or counts before a task has left its set; hashes that are read whole are as small as the number of
queues, nodes and fields of a task."""


@pytest.mark.parametrize("name", [*PARTS, *TEXTS])
def test_scripts_use_a_few_commands_only(name: str) -> None:
    text = {**PARTS, **TEXTS}[name]

    assert set(re.findall(r"redis\.p?call\(\s*\"(\w+)\"", text)) <= COMMANDS


@pytest.mark.parametrize("name", [*PARTS, *TEXTS])
def test_payloads_are_opaque_to_scripts(name: str) -> None:
    assert not {"cjson", "cmsgpack", "struct", "loadstring"} & words({**PARTS, **TEXTS}[name])


@pytest.mark.parametrize("name", [*PARTS, *TEXTS])
def test_scripts_leave_no_global_behind(name: str) -> None:
    text = {**PARTS, **TEXTS}[name]

    assert not re.search(r"^function ", code(text), re.MULTILINE)
