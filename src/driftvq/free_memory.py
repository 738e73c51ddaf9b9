"""How much memory this process may still take."""

import os
from contextlib import suppress
from pathlib import Path

UNKNOWN = 4 << 30
"""What is assumed where the system does not say."""

_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Limit, use, and the part of the use that is a cache of files, of a container: version 2 and 1 of control groups."""


def available_memory() -> int:
    """Bytes that the machine, the container and the process's own limit all leave."""
    found = [_of_machine(), *map(_of_group, _GROUPS), _of_process()]
    return max(0, min([value for value in found if value is not None], default=UNKNOWN))


def _of_machine() -> int | None:
    with suppress(OSError, ValueError):
        return _field(Path("/proc/meminfo"), "MemAvailable:") * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _of_group(files: tuple[str, str, str]) -> int | None:
    limit, used, cached = files
    with suppress(OSError, ValueError):
        most, now = int(Path(limit).read_text()), int(Path(used).read_text())
        return most - now + _field(Path(limit).with_name("memory.stat"), cached)
    return None


def _of_process() -> int | None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            return most - _field(Path("/proc/self/status"), "VmSize:") * 1024
    return None


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ") if "\t" not in line else line.partition("\t")
        if key == name:
            return int(value.split()[0])
    raise ValueError(f"no {name} in {path}")
