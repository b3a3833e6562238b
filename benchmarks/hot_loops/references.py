"""Hand-written Triton for the programs of `benchmarks.hot_loops`: what the emitted kernels are held against.

Each kernel is written as a person would for speed: pointers that move, no mask where the tiles divide the
extents, exponentials to base 2, blocks grouped for the L2 cache. Tensors are contiguous; sizes are compile-time
constants.
"""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C[M, N] = A[M, K] B[K, N], in f16 with f32 sums."""
    pid = tl.program_id(0)
    columns: tl.constexpr = N // BN
    first = pid // (GROUP * columns) * GROUP
    rows = min(M // BM - first, GROUP)
    m = first + pid % (GROUP * columns) % rows
    n = pid % (GROUP * columns) // rows
    rm = m * BM + tl.arange(0, BM)
    rn = n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + rm[:, None] * K + rk[None, :]
    b = b_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a), tl.load(b), acc)
        a += BK
        b += BK * N
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr,
    M: tl.constexpr, T: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """O = softmax(Q K^T) V for heads x M queries and T keys of width D: online softmax, one pass."""
    head = tl.program_id(1)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rt = tl.arange(0, BT)
    rd = tl.arange(0, D)
    whole: tl.constexpr = M % BM == 0
    rows = q_ptr + head * M * D + rm[:, None] * D + rd[None, :]
    q = tl.load(rows) if whole else tl.load(rows, mask=rm[:, None] < M, other=0.0)
    k = k_ptr + head * T * D + rt[None, :] * D + rd[:, None]
    v = v_ptr + head * T * D + rt[:, None] * D + rd[None, :]
    highest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for _ in range(0, T, BT):
        s = tl.dot(q, tl.load(k))
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.exp2(s * 1.4426950408889634 - (new * 1.4426950408889634)[:, None])
        scale = tl.exp2((highest - new) * 1.4426950408889634)
        total = total * scale + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v), acc * scale[:, None])
        highest = new
        k += BT * D
        v += BT * D
    out = (acc / total[:, None]).to(tl.float16)
    o = o_ptr + head * M * D + rm[:, None] * D + rd[None, :]
    if whole:
        tl.store(o, out)
    else:
        tl.store(o, out, mask=rm[:, None] < M)


@triton.jit
def cache_copy(
    cache_ptr, new_ptr, o_ptr,
    OLD: tl.constexpr, NEW: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """O = what is kept of a head's keys, and then the new ones; NEW is a power of two, BT one of at least OLD."""
    head = tl.program_id(1)
    rd = tl.program_id(0) * BD + tl.arange(0, BD)
    rt = tl.arange(0, BT)
    rn = tl.arange(0, NEW)
    kept = tl.load(cache_ptr + head * OLD * D + rt[:, None] * D + rd[None, :], mask=rt[:, None] < OLD)
    new = tl.load(new_ptr + head * NEW * D + rn[:, None] * D + rd[None, :])
    o = o_ptr + head * (OLD + NEW) * D
    tl.store(o + rt[:, None] * D + rd[None, :], kept, mask=rt[:, None] < OLD)
    tl.store(o + OLD * D + rn[:, None] * D + rd[None, :], new)


@triton.jit
def rmsnorm(x_ptr, o_ptr, N: tl.constexpr, eps: tl.constexpr):
    """One row of N elements a block."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at).to(tl.float32)
    tl.store(o_ptr + at, (x * tl.rsqrt(tl.sum(x * x, 0) / N + eps)).to(tl.float16))


@triton.jit
def rmsnorm_linear(
    x_ptr, w_ptr, o_ptr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    """O = rmsnorm(X) W: the sum of squares beside the product, in one loop."""
    rm = tl.arange(0, M)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    x = x_ptr + rm[:, None] * K + rk[None, :]
    w = w_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros([M, BN], tl.float32)
    squares = tl.zeros([M], tl.float32)
    for _ in range(0, K, BK):
        tile = tl.load(x)
        acc = tl.dot(tile, tl.load(w), acc)
        wide = tile.to(tl.float32)
        squares += tl.sum(wide * wide, 1)
        x += BK
        w += BK * N
    out = acc * tl.rsqrt(squares / K + eps)[:, None]
    tl.store(o_ptr + rm[:, None] * N + rn[None, :], out.to(tl.float16))


@triton.jit
def gated_mlp(
    x_ptr, w_ptr, v_ptr, o_ptr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """O = silu(X W) * (X V), both products in one loop; rows from M up to BM are padding."""
    rm = tl.arange(0, BM)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    x = x_ptr + rm[:, None] * K + rk[None, :]
    w = w_ptr + rk[:, None] * N + rn[None, :]
    v = v_ptr + rk[:, None] * N + rn[None, :]
    gate = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for _ in range(0, K, BK):
        tile = tl.load(x) if M == BM else tl.load(x, mask=rm[:, None] < M, other=0.0)
        gate = tl.dot(tile, tl.load(w), gate)
        up = tl.dot(tile, tl.load(v), up)
        x += BK
        w += BK * N
        v += BK * N
    out = (gate / (1.0 + tl.exp(-gate)) * up).to(tl.float16)
    at = o_ptr + rm[:, None] * N + rn[None, :]
    if M == BM:
        tl.store(at, out)
    else:
        tl.store(at, out, mask=rm[:, None] < M)


@triton.jit
def conv(
    x_ptr, w_ptr, y_ptr,
    T: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    OT: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, F: tl.constexpr,
    Q: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    GROUPS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD: tl.constexpr,
    BT: tl.constexpr, BY: tl.constexpr, BX: tl.constexpr, BF: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Y = conv(X, W), channels last: every position of the kernel in a trip, rows are positions of the result.

    T is 1 and its kernel of one position for images; else it has neither stride, dilation nor pad of its own.
    """
    depth: tl.constexpr = C // GROUPS
    rows = tl.arange(0, BT * BY * BX)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    t_blocks: tl.constexpr = (OT + BT - 1) // BT
    t = tl.program_id(2) % t_blocks * BT + rows // (BY * BX)
    n = tl.program_id(2) // t_blocks
    y = tl.program_id(0) * BY + rows // BX % BY
    x = rows % BX
    c = tl.arange(0, BC)
    first = tl.program_id(1) * BF // (F // GROUPS) * depth
    images = x_ptr + n * T * H * W * C + first
    acc = tl.zeros([BT * BY * BX, BF], tl.float32)
    for k in range(0, depth, BC):
        for q in tl.static_range(Q):
            for r in tl.static_range(R):
                for s in tl.static_range(S):
                    it = t * (STRIDE if Q > 1 else 1) + (q * DILATION - PAD if Q > 1 else 0)
                    iy = y * STRIDE + r * DILATION - PAD
                    ix = x * STRIDE + s * DILATION - PAD
                    inside = (it >= 0) & (it < T) & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
                    at = ((it * H + iy) * W + ix) * C
                    mask = inside[:, None] & (k + c < depth)[None, :] if depth % BC else inside[:, None]
                    a = tl.load(images + at[:, None] + (k + c)[None, :], mask=mask, other=0.0)
                    w = w_ptr + ((q * R + r) * S + s) * depth * F + (k + c)[:, None] * F + f[None, :]
                    b = tl.load(w, mask=(k + c < depth)[:, None], other=0.0) if depth % BC else tl.load(w)
                    acc = tl.dot(a, b, acc)
    at = ((n * OT + t) * OH + y) * OW + x
    mask = (t < OT) & (y < OH) & (x < OW)
    tl.store(y_ptr + at[:, None] * F + f[None, :], acc.to(tl.float16), mask=mask[:, None])
