"""Who may import whom: every arrow points downhill, and none closes a circle."""

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from layers import FOLDERS, LAYERS, LEAVES

import sparsemlp

ROOT = Path(__file__).parent.parent
PACKAGES = ("pallas_kernels", "sparsemlp", "experiments")
"""A package may import those before it."""

PARTS = ("cost_tables", "benchmarks", "tuning", "gpu")
"""Folders of experiments, parts of its programs; a part may import those before it, no program."""

ONE_CONCEPT = ("data", "figures")
"""Folders of sparsemlp whose modules have one place in the layers together."""

Graph = Mapping[str, set[str]]


def sources() -> Iterator[tuple[str, Path]]:
    """Every module of the packages by its name; a package's own is `package.__init__`."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imports_of(name: str, source: str, known: set[str]) -> set[str]:
    """What a module imports, wherever in its text, as names of `known` modules where it can."""

    def resolve(target: str) -> str:
        package = f"{target}.__init__"
        return package if package in known else target

    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {resolve(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                module = resolve(f"{base}.{alias.name}")
                found.add(module if module in known else resolve(base))
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    texts = {name: path.read_text() for name, path in sources()}
    return {name: imports_of(name, text, set(texts)) for name, text in texts.items()}


def arrows(graph: Graph) -> Iterator[tuple[str, str]]:
    return ((source, target) for source, targets in graph.items() for target in sorted(targets))


def folder(module: str) -> str | None:
    """The folder of sparsemlp that a module lies in, None if it is of another package."""
    package, *rest = module.split(".")
    if package != "sparsemlp":
        return None
    return rest[0] if len(rest) > 1 else package


def concept(module: str) -> str | None:
    """The concept of sparsemlp that a module is, None where it has none of its own."""
    own = folder(module)
    if own is None or own in ONE_CONCEPT:
        return own
    name = module.split(".")[-1]
    return None if own != "sparsemlp" and name == "__init__" else name


def between_packages_uphill(graph: Graph) -> list[str]:
    rank = {package: index for index, package in enumerate(PACKAGES)}
    return [
        f"{source} -> {target}"
        for source, target in arrows(graph)
        if rank.get(target.split(".")[0], -1) > rank[source.split(".")[0]]
    ]


def inside_sparsemlp_uphill(graph: Graph) -> list[str]:
    rank = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    uphill = []
    for source, target in arrows(graph):
        above, below = concept(source), concept(target)
        if above is None or below is None or above == below:
            continue
        if rank[below] >= rank[above]:
            uphill.append(f"{source} -> {target}")
    return uphill


def between_folders_uphill(graph: Graph) -> list[str]:
    rank = {name: index for index, name in enumerate(FOLDERS)}
    return [
        f"{source} -> {target}"
        for source, target in arrows(graph)
        if (above := folder(source)) is not None
        and (below := folder(target)) is not None
        and rank[below] > rank[above]
    ]


def out_of_leaves(graph: Graph) -> list[str]:
    return [
        f"{source} -> {target}"
        for source, target in arrows(graph)
        if (leaf := concept(source)) in LEAVES
        and leaf is not None
        and (other := concept(target)) is not None
        and other not in {leaf, *LEAVES[leaf]}
    ]


def between_parts_uphill(graph: Graph) -> list[str]:
    programs = {path.stem for path in (ROOT / "experiments").glob("*.py")}
    rank = dict.fromkeys(programs, len(PARTS)) | {part: index for index, part in enumerate(PARTS)}
    return [
        f"{source} -> {target}"
        for source, target in arrows(graph)
        if source.startswith("experiments.")
        and rank.get(target.split(".")[0], -1) > rank[source.split(".")[1]]
    ]


def circle(graph: Graph) -> str | None:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


def of_libraries(graph: Graph, package: str, *libraries: str) -> list[str]:
    return [
        f"{source} -> {target}"
        for source, target in arrows(graph)
        if source.startswith(package) and target.split(".")[0] in libraries
    ]


def test_experiments_stand_on_sparsemlp_and_sparsemlp_on_pallas_kernels(graph):
    assert {name.split(".")[0] for name in graph} == set(PACKAGES)
    assert not between_packages_uphill(graph)
    for upper, lower in (("sparsemlp", "pallas_kernels"), ("experiments", "sparsemlp")):
        assert of_libraries(graph, upper, lower)


def test_kernels_know_nothing_of_flax_or_optimizers_or_models(graph):
    assert not of_libraries(graph, "pallas_kernels", "flax", "optax", "orbax", "sparsemlp")


def test_every_module_of_sparsemlp_has_a_place_in_the_layers(graph):
    placed = {name for layer in LAYERS for name in layer}
    present = {name for module in graph if (name := concept(module))}
    assert present == placed, "give each module a place in LAYERS, and each place a module"
    assert sum(len(layer) for layer in LAYERS) == len(placed)


def test_the_layers_keep_the_order_of_the_design():
    rank = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    chain = ["blocks", "masks", "selection", "linear", "modules", "resmlp", "training", "run"]
    assert [rank[name] for name in chain] == sorted({rank[name] for name in chain})


def test_inside_sparsemlp_every_import_runs_downhill(graph):
    assert not inside_sparsemlp_uphill(graph)


def test_every_folder_of_sparsemlp_has_a_place_and_imports_run_downhill(graph):
    present = {name for module in graph if (name := folder(module))}
    assert present == set(FOLDERS), "give each folder a place in FOLDERS, and each place a folder"
    assert not between_folders_uphill(graph)


def test_every_folder_of_experiments_has_a_place_and_imports_run_downhill(graph):
    present = {path.parent.name for path in (ROOT / "experiments").glob("*/*.py")}
    assert present == set(PARTS), "give each folder a place in PARTS, and each place a folder"
    assert not between_parts_uphill(graph)


def test_leaves_know_none_of_the_others(graph):
    assert not out_of_leaves(graph)


def test_no_imports_form_a_circle(graph):
    assert circle(graph) is None


def test_nothing_imports_tensorflow(graph):
    # clu's metric writers would bring it in.
    for package in PACKAGES:
        assert not of_libraries(graph, package, "tensorflow", "clu")


def test_the_library_does_without_torch(graph):
    for package in ("pallas_kernels", "sparsemlp"):
        assert not of_libraries(graph, package, "torch")


def test_every_public_name_can_be_imported():
    assert sorted(sparsemlp.__all__) == sorted(set(sparsemlp.__all__))
    for name in sparsemlp.__all__:
        assert getattr(sparsemlp, name) is not None


@pytest.mark.parametrize(
    "package",
    ["sparsemlp", "sparsemlp/data/imagenet", *(f"sparsemlp/{name}" for name in FOLDERS[1:])],
)
def test_the_init_of_a_package_only_hands_out_names(package):
    body = ast.parse((ROOT / package / "__init__.py").read_text()).body
    for statement in body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_all = (
            isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        )
        assert is_docstring or is_all or isinstance(statement, ast.ImportFrom)


@pytest.mark.parametrize(
    ("find", "source", "text", "arrow"),
    [
        (
            between_packages_uphill,
            "pallas_kernels.dense",
            "def f():\n    from sparsemlp import masks",
            "pallas_kernels.dense -> sparsemlp.masks",
        ),
        (
            between_packages_uphill,
            "sparsemlp.runs.run",
            "import experiments.cifar10",
            "sparsemlp.runs.run -> experiments.cifar10",
        ),
        (
            inside_sparsemlp_uphill,
            "sparsemlp.blocks",
            "from .selection import select_blocks",
            "sparsemlp.blocks -> sparsemlp.selection",
        ),
        (
            inside_sparsemlp_uphill,
            "sparsemlp.resmlp",
            "from sparsemlp import parse_model",
            "sparsemlp.resmlp -> sparsemlp.__init__",
        ),
        (
            between_folders_uphill,
            "sparsemlp.train.losses",
            "from sparsemlp.runs.history import History",
            "sparsemlp.train.losses -> sparsemlp.runs.history",
        ),
        (
            between_parts_uphill,
            "experiments.benchmarks.timing",
            "from gpu.points import Point",
            "experiments.benchmarks.timing -> gpu.points",
        ),
        (
            between_parts_uphill,
            "experiments.gpu.points",
            "import benchmark",
            "experiments.gpu.points -> benchmark",
        ),
        (
            out_of_leaves,
            "sparsemlp.data.npz",
            "from sparsemlp.blocks import Block",
            "sparsemlp.data.npz -> sparsemlp.blocks",
        ),
    ],
)
def test_an_arrow_that_runs_uphill_is_found_and_named(graph, find, source, text, arrow):
    assert find({**graph, source: imports_of(source, text, set(graph))}) == [arrow]


def test_a_circle_is_found_and_named(graph):
    closed = {**graph, "pallas_kernels.layout": {"pallas_kernels.reference"}}
    found = circle(closed)
    assert found is not None
    assert "pallas_kernels.layout -> pallas_kernels.reference" in found
