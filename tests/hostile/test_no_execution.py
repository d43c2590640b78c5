"""Nothing in the package turns text into code, runs a shell or unpickles."""

import ast
from pathlib import Path

import pytest

import draftbench

PACKAGE = Path(draftbench.__file__).parent
RUNS_CODE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "marshal.loads"}
UNPACKS_CODE = {"pickle.load", "pickle.loads", "torch.load", "yaml.unsafe_load", "yaml.full_load"}


def called(tree):
    """Dotted names of everything that is called, with the call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def offences(source):
    for name, call in called(ast.parse(source)):
        options = {word.arg: ast.unparse(word.value) for word in call.keywords}
        loader = [ast.unparse(word) for word in call.args[1:]]
        if name in RUNS_CODE | UNPACKS_CODE or options.get("shell") == "True":
            yield f"{name} in line {call.lineno}"
        elif name == "yaml.load" and loader != ["Plain"]:
            yield f"{name} with {loader} in line {call.lineno}"


def test_no_module_runs_what_it_reads():
    found = {
        str(path.relative_to(PACKAGE)): list(offences(path.read_text()))
        for path in PACKAGE.rglob("*.py")
    }
    assert len(found) > 80
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    ["eval(x)", "os.system(x)", "subprocess.run(x, shell=True)", "torch.load(x)", "yaml.load(x)"],
)
def test_the_search_finds_what_it_looks_for(source):
    assert len(list(offences(source))) == 1
