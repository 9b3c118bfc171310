"""Keeps freed memory with the process while layers are worked on. Knows no model and no tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""glibc's malloc.h; mallopt(3) says what they do."""
MADV_HUGEPAGE = 14
"""Linux's mman.h; madvise(2) says what it does."""
MAPPED = 32 << 20
"""Bytes from which a block is mapped by itself and given back when freed: the most that glibc takes."""
TOP_PAD, PAGE = 128 << 10, 2 << 20
"""glibc's own pad, and the size of a huge page on most processors."""
KEPT = 1 << 29
"""Bytes that are added to the heap; twice as many that are free are kept."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """While this lasts, glibc keeps up to a gigabyte of freed memory in place of giving it back, the first half in huge pages.

    Each batch frees what the next one takes again, and every page that comes from the system is filled with zeros first: a
    tenth of the time, and another tenth in small pages. Afterwards free memory is given back, and the limits are those that
    glibc's own rule ends at. Where the C library is another, nothing is done.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, MAPPED)
    library.mallopt(M_TRIM_THRESHOLD, 2 * KEPT)
    _grow(library)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, 2 * MAPPED)
        library.malloc_trim(0)


def _grow(library: Any) -> None:
    """Add addresses for what will be kept to the heap, in huge pages. They take memory only where they are used."""
    library.malloc_trim(0)  # or what is free serves, in small pages
    end = library.sbrk(0)
    library.mallopt(M_TOP_PAD, KEPT)
    library.free(library.malloc(MAPPED // 2))
    library.mallopt(M_TOP_PAD, TOP_PAD)
    huge_pages(end, library.sbrk(0) - end)


def huge_pages(address: int, size: int) -> None:
    """Ask for huge pages in `size` bytes from `address`: fewer are filled, and found, one by one. They may be refused."""
    library = _glibc()
    if library is not None:
        start = -(-address // PAGE) * PAGE
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(max(0, address + size - start)), MADV_HUGEPAGE)


def _glibc() -> Any:
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return None
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.sbrk.argtypes = [ctypes.c_ssize_t]
    return library
