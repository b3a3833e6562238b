"""The primes that two programs are compared over: p = 2 q + 1, drawn for each pair by the hash of their texts.

Constants are rational numbers, and two different ones may be the same modulo p (2^62 and 10565 are, modulo
2^62 - 10565). Nobody can choose such constants for a prime that depends on the whole of both texts, including
the constants. There are about 10^14 such pairs (q, 2 q + 1) with 15/16 2^61 < q < 2^61, each as likely as any
other: so close to a power of two that random residues are rarely redrawn.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from typing import TypeAlias

Primes: TypeAlias = tuple[int, int]

_SMALL = math.prod(n for n in range(3, 200, 2) if all(n % d for d in range(3, n, 2)))


@functools.lru_cache(256)
def drawn(*texts: str) -> Primes:
    """(p, q) of these texts: the first of the numbers q that their hash gives with q and 2 q + 1 prime.

    The i-th number is 15 2^57 plus the last 57 bits, made odd, of the blake2b digest (8 bytes, little endian) of
    i (8 bytes) and the concatenated sha256 of the texts.
    """
    key = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
    for i in itertools.count():
        digest = hashlib.blake2b(i.to_bytes(8, "little") + key, digest_size=8).digest()
        q = (15 << 57) | (int.from_bytes(digest, "little") & ((1 << 57) - 1)) | 1
        p = 2 * q + 1
        if math.gcd(q * p, _SMALL) == 1 and pow(2, q - 1, q) == 1 and is_prime(q) and is_prime(p):
            return p, q
    raise AssertionError


def is_prime(n: int) -> bool:
    """The Miller-Rabin test with bases that decide every n below 2^64."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % b == 0 and n != b for b in bases):
        return False
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for b in bases:
        x = pow(b, odd, n)
        if n == b or x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True
