"""How the wheel is laid out: one top-level package, with the system inside (docs/decisions/packaging.md).

A checkout has its packages at the top, where editable installs and images import them. An installed wheel must not own
names such as `shared`. So the wheel has them as `contrafact._system.shared` and so on, and the import statements of its
copies are rewritten. Code that names a module in a string calls `shared.package.module`.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PUBLIC = "contrafact"
INSIDE = (
    "gateway",
    "caption_service",
    "llm_service",
    "diffusion_service",
    "evaluator_service",
    "shared",
    "embedded",
    "tinyworld",
)
SYSTEM = f"{PUBLIC}._system"
LEARN = (
    "byte_pairs.py",
    "clip_tokenizer.py",
    "word_tokenizer.py",
)  # they learn tokenizers, which nothing does at run time
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", *LEARN)


class BuildPy(build_py):  # type: ignore[misc]  # setuptools has no types
    """Builds the nested layout; an editable install keeps the checkout's."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        write_nested(Path.cwd(), Path(self.build_lib))


class BdistWheel(bdist_wheel):  # type: ignore[misc]
    """Names the one top-level package in the wheel's metadata."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        Path(distinfo_path, "top_level.txt").write_text(f"{PUBLIC}\n", encoding="utf-8")


def write_nested(checkout: Path, target: Path) -> None:
    """Copy the packages of a checkout with all their files into `target`, nested, and rewrite their imports."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkout / PUBLIC, target / PUBLIC, ignore=UNWANTED)
    system = target.joinpath(*SYSTEM.split("."))
    system.mkdir()
    (system / "__init__.py").write_text('"""The system: gateway, model services and what they share."""\n')
    for name in INSIDE:
        shutil.copytree(checkout / name, system / name, ignore=UNWANTED)
    for path in target.rglob("*.py"):
        path.write_text(nested_imports(path.read_text(encoding="utf-8"), path.name), encoding="utf-8")


def nested_imports(source: str, name: str) -> str:
    """A module's source with the absolute imports of our packages nested. Raises ValueError for `import shared.x`.

    Such a statement would bind the name `shared`; `import shared.x as x` and `from shared import x` can be rewritten.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_inside(node.module):
            _replace(lines, node, f"from {node.module} ", f"from {SYSTEM}.{node.module} ", name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_inside(alias.name) and alias.asname is None:
                    raise ValueError(f"{name}:{node.lineno}: write `from {alias.name} import ...`; see wheel_layout.py")
                if _is_inside(alias.name):
                    _replace(lines, node, f"{alias.name} as ", f"{SYSTEM}.{alias.name} as ", name)
    return "".join(lines)


def _is_inside(module: str | None) -> bool:
    return (module or "").partition(".")[0] in INSIDE


def _replace(lines: list[str], node: ast.stmt, before: str, after: str, name: str) -> None:
    line = lines[node.lineno - 1]
    if before not in line[node.col_offset :]:
        raise ValueError(f"{name}:{node.lineno}: an import that is not on one line: {line.strip()}")
    lines[node.lineno - 1] = line[: node.col_offset] + line[node.col_offset :].replace(before, after, 1)
