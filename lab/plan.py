"""What the lab runs: scenarios and methods from their data files, sizes, and which of it is possible here.

A scenario (scenarios/NAME.toml):
  title, what    words for the report
  place          its place in the tables
  role           home (in distribution), shift, or grid (a table of its own)
  segments       domains in the order they come; one that comes again brings further requests
  order          blocks (default: segment after segment) or turns (one request of each segment in turn)
  points         [temperature, judge] pairs, each a run; default [[0.5, "match"]]: at 0 a small target repeats itself, and loops
                 flatter every memory
  draft          tokens a block; default 5, the seed's
  methods        labels out of methods.toml; default all
  target         name of a target in the folder of --tuned that takes the pair's place
  opening        methods of the opening picture; one scenario has it
"""
import dataclasses
import os
import re
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
# size: requests a segment, tokens a request. `quick` is for ten minutes on two cores with the built-in pair, `smoke` shows that the lab works.
SIZES = {"smoke": (1, 12), "quick": (8, 96), "full": (24, 128)}
SMOKE_SCENARIOS = ("in-distribution", "stream", "shift-law")  # the others differ in their data only
FAMILIES = ("plain", "draft", "ours", "copy", "gradient", "bound")
NEEDS = ("torch", "levels", "tuned-draft")
NAME = re.compile(r"[A-Za-z0-9_.+-]{1,32}")


class Unusable(Exception):
    """Why something the user gave cannot be used."""


@dataclasses.dataclass(frozen=True)
class Method:
    label: str
    mode: str
    family: str
    what: str
    needs: tuple = ()
    sizes: tuple = tuple(SIZES)

    def as_mode(self, files):
        """As `drift compare --modes` takes it; files: what the words in braces stand for."""
        mode = self.mode
        for name, path in files.items():
            mode = mode.replace("{" + name + "}", path)
        return mode if mode == self.label else f"{self.label}={mode}"


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    what: str
    place: int
    role: str
    segments: tuple
    order: str = "blocks"
    points: tuple = ((0.5, "match"),)
    draft: int = 5
    methods: tuple = ()
    target: str = ""
    opening: tuple = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of drift compare."""
    scenario: Scenario
    temperature: float
    judge: str
    methods: tuple  # Method, those that are possible

    @property
    def name(self):
        return f"{self.scenario.name}-t{self.temperature:g}-{self.judge}"


def _table(path):
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Unusable(f"{path}: {error}") from error


def _frozen(value):
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def _made(kind, path, fields):
    known = {f.name for f in dataclasses.fields(kind)}
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    for wrong, names in (("does not know the field", set(fields) - known), ("lacks the field", required - set(fields))):
        if names:
            raise Unusable(f"{path}: {wrong} {', '.join(sorted(names))}")
    return kind(**{name: _frozen(value) for name, value in fields.items()})


def read_methods(path=os.path.join(HERE, "methods.toml")):
    methods = [_made(Method, path, entry) for entry in _table(path).get("method", [])]
    for method in methods:
        for good, what in ((NAME.fullmatch(method.label), "label"), (method.family in FAMILIES, "family"), (set(method.needs) <= set(NEEDS), "needs"),
                           (set(method.sizes) <= set(SIZES), "sizes")):
            if not good:
                raise Unusable(f"{path}: method {method.label!r}: its {what} cannot be used")
    labels = [method.label for method in methods]
    if len(set(labels)) < len(labels) or not {"off", "static"} <= set(labels):
        raise Unusable(f"{path}: labels must differ, and off and static must be among them")
    return methods


def read_scenarios(folder=os.path.join(HERE, "scenarios")):
    scenarios = []
    for file in sorted(os.listdir(folder)):
        if file.endswith(".toml"):
            path = os.path.join(folder, file)
            scenario = _made(Scenario, path, {"name": file.removesuffix(".toml"), **_table(path)})
            for good, what in ((NAME.fullmatch(scenario.name), "name"), (scenario.role in ("home", "shift", "grid"), "role"), (scenario.order in ("blocks", "turns"), "order"),
                               (scenario.segments and all(isinstance(s, str) and NAME.fullmatch(s) for s in scenario.segments), "segments"),
                               (all(len(p) == 2 and p[1] in ("match", "rejection") for p in scenario.points) and scenario.points, "points")):
                if not good:
                    raise Unusable(f"{path}: its {what} cannot be used")
            scenarios.append(scenario)
    return sorted(scenarios, key=lambda s: (s.place, s.name))


def possible(methods, scenario, size, have):
    """(methods that can run, {label: what is missing}); have: the needs that are met."""
    wanted = [m for m in methods if (not scenario.methods or m.label in scenario.methods or m.label in ("off", "static")) and size in m.sizes]
    missing = {m.label: [need for need in m.needs if need not in have] for m in wanted}
    return tuple(m for m in wanted if not missing[m.label]), {label: needs for label, needs in missing.items() if needs}
