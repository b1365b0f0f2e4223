"""What holds for every module of legroom, read from its source: no framework is needed for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted((SOURCE / "legroom").rglob("*.py"))


def names_bound(body: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """The names a module binds at its top level, and whether it makes or only imports them."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).split(".")[0], False
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, True
        elif isinstance(node, ast.Assign):
            made = not is_type_variable(node.value)
            for target in node.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        yield part.id, made
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from names_bound(node.body)
            yield from names_bound(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                yield from names_bound(handler.body)


def is_type_variable(value: ast.expr) -> bool:
    """Type variables are no one else's business, and are named by convention without a mark."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("TypeVar", "ParamSpec")
    )


def declared(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id == "__all__":
            assert node.value is not None  # type: ignore[union-attr]
            return list(ast.literal_eval(node.value))  # type: ignore[union-attr]
    return None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_all_is_what_the_module_defines(path: Path) -> None:
    tree = ast.parse(path.read_text())
    bound = dict(names_bound(tree.body))
    names = declared(tree)
    if not bound and path.name == "__init__.py":
        return  # a package that only groups its modules
    assert names is not None, "no __all__"
    assert len(set(names)) == len(names)
    assert set(names) <= set(bound), "__all__ names what is not there"
    public = {name for name, made in bound.items() if made and not name.startswith("_")}
    assert public <= set(names), "defined without a leading underscore, and not in __all__"
