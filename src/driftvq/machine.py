"""The machine that this runs on: its devices, its free memory, and what is installed on it."""

import logging
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from driftvq.names import check_name, version_of

DEVICES = ("auto", "cpu", "cuda", "mps")
PACKAGES = ("driftvq", "torch", "lightning", "numpy", "pillow", "safetensors", "datasets")

UNKNOWN = 4 << 30  # what is assumed where the system does not say
# Limit, use, and the part of the use that is a cache of files, of a container: version 2 and 1 of control groups.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory() -> int:
    """Bytes that the machine, the container and the process's own limit all leave."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        found.append(_field(Path("/proc/meminfo"), "MemAvailable:") * 1024)
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    for folder, limit, used, cached in _GROUPS:
        with suppress(OSError, ValueError):
            most, now = (int(Path(folder, name).read_text()) for name in (limit, used))
            found.append(most - now + _field(Path(folder, "memory.stat"), cached))
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            found.append(most - _field(Path("/proc/self/status"), "VmSize:") * 1024)
    return max(0, min(found, default=UNKNOWN))


def _field(path: Path, name: str) -> int:
    for words in map(str.split, path.read_text().splitlines()):
        if words[:1] == [name]:
            return int(words[1])
    raise ValueError(f"no {name} in {path}")


def pick_accelerator(accelerator: str) -> str:
    """``"cuda"``, ``"mps"`` or ``"cpu"``: where Lightning's choice of accelerator will run."""
    return pick_device("auto").type if accelerator in ("auto", "gpu") else accelerator


def pick_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one."""
    check_name("device", name.partition(":")[0], DEVICES)
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if (name.startswith("cuda") and not cuda) or (name.startswith("mps") and not mps):
        raise ValueError(f"device {name!r} is not available here; allowed: auto, cpu{', cuda' * cuda}{', mps' * mps}")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}") from error


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Inside, torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet(*loggers: str, module: str = "") -> Iterator[None]:
    """Leave the screen to what concerns the user: of these loggers errors alone, and no warnings of the module."""
    levels = {logger: logger.level for logger in map(logging.getLogger, loggers)}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=module)
            for logger in levels:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def environment() -> dict[str, Any]:
    """The command, versions, the machine, and the git commit of the code."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(), "platform": platform.platform(), "cpu": _cpu(), "cores": cores(),
        "packages": {name: version for name in PACKAGES if (version := version_of(name)) is not None},
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(), "git": git_state(Path(__file__).parent),
    }  # fmt: skip


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def git_state(folder: Path, run: Callable[..., Any] = subprocess.run) -> dict[str, Any] | None:
    """The commit that a folder belongs to and whether tracked files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return str(run(command, capture_output=True, text=True, check=True, timeout=10).stdout).strip()

    try:
        if not git("ls-files", "--", "."):  # merely inside of another repository
            return None
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
