# SPDX-License-Identifier: MIT
"""test_attention.py: tests of adapters.py, for pytest or alone: python3 test_attention.py.

The reference is plain Python, whose numbers are float64. A result is right if it is as exact as
float32 allows: the limit of each number follows from the sizes of what was added up (u = 2^-24, A
the largest sum of |q||k| of a row times scale, n its keys, D = 1 + sqrt(d)/4):

    |O - ref|  <= 4 u (D A + sqrt(n) + 8) sum P |V|
    |lse - ref| <= 4 u (D A + sqrt(n) + |lse| + 8)

The environment variable COURSE_KEY, any text, changes the inputs: a teacher sets one that nobody
knows.

Interface:
- test_*: functions without arguments. run() -> [(name, error or None)].
"""
import math
import os
import random
import sys

import adapters

U = 2.0 ** -24


def numbers(*sizes):
    """A generator of random numbers that follows from the sizes and the key."""
    return random.Random(f"{os.environ.get('COURSE_KEY', '')} {sizes}")


def rows(rng, count, d):
    """count x d numbers that are float32 exactly, so that all of us see the same ones."""
    return [[round(rng.gauss(0.0, 1.0) * 4096) / 4096 for _ in range(d)] for _ in range(count)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def attend(q, k, v, scale, visible):
    """-> (o, lse, bounds of o, bounds of lse); visible(i, j)."""
    d, big_d = len(v[0]), 1 + math.sqrt(len(q[0])) / 4
    result = ([], [], [], [])
    for i, query in enumerate(q):
        seen = [j for j in range(len(k)) if visible(i, j)]
        if not seen:
            for part, value in zip(result, ([0.0] * d, -math.inf, [0.0] * d, 0.0)):
                part.append(value)
            continue
        s = [scale * dot(query, k[j]) for j in seen]
        lse = max(s) + math.log(sum(math.exp(x - max(s)) for x in s))
        p = [math.exp(x - lse) for x in s]
        size = scale * max(sum(abs(a * b) for a, b in zip(query, k[j])) for j in seen)
        steady = big_d * size + math.sqrt(len(seen)) + 8
        result[0].append([sum(w * v[j][x] for w, j in zip(p, seen)) for x in range(d)])
        result[1].append(lse)
        result[2].append([4 * U * steady * sum(w * abs(v[j][x]) for w, j in zip(p, seen))
                          for x in range(d)])
        result[3].append(4 * U * (steady + abs(lse)))
    return result


def close(name, found, expected, bound):
    """Compares numbers or nested lists of them."""
    if isinstance(expected, list):
        assert len(found) == len(expected), \
            f"{name} has {len(found)} elements, {len(expected)} are right"
        for n, parts in enumerate(zip(found, expected, bound)):
            close(f"{name}[{n}]", *parts)
        return
    same = found == expected or abs(found - expected) <= bound
    assert same, f"{name} is {found}, right is {expected} (within {bound:.1e})"


def corner(q, k):
    return lambda i, j: j <= i + len(k) - len(q)


def everything(i, j):
    return True


def check_forward(count_q, count_k, d, causal):
    rng = numbers("forward", count_q, count_k)
    q, k, v = rows(rng, count_q, d), rows(rng, count_k, d), rows(rng, count_k, d)
    scale = 1 / math.sqrt(d)
    wanted = attend(q, k, v, scale, corner(q, k) if causal else everything)
    o, lse = adapters.flash_forward(*map(adapters.to_array, (q, k, v)), scale, causal)
    close("o", adapters.to_list(o), wanted[0], wanted[2])
    close("lse", adapters.to_list(lse), wanted[1], wanted[3])


def test_forward_three_tokens():
    check_forward(3, 3, 2, False)


def test_forward_no_multiple_of_a_tile():
    check_forward(77, 77, 16, False)


def test_forward_causal():
    check_forward(45, 77, 8, True)


def test_forward_rows_that_see_no_key():
    check_forward(40, 13, 8, True)


def blocks_of(data, size):
    """[n][...] in blocks of `size`, the last one filled with zeros."""
    zero = [[0.0] * len(data[0][0]) for _ in data[0]]
    padded = data + [zero] * (-len(data) % size)
    return [padded[at:at + size] for at in range(0, len(padded), size)]


def check_online(sizes, block_q, block_kv, heads, causal, window):
    """Every step is compared: the reference sees the keys of the blocks that have come."""
    count_q, count_k, d, (hq, hkv) = *sizes, heads
    rng = numbers("online", count_q, count_k, block_q)
    q = [rows(rng, hq, d) for _ in range(count_q)]
    k, v = ([rows(rng, hkv, d) for _ in range(count_k)] for _ in range(2))
    scale, shift = 1 / math.sqrt(d), count_k - count_q
    module = adapters.OnlineAttention(count_q, count_k, block_q, block_kv, scale, causal, window)
    o = adapters.to_array([[[[0.0] * d for _ in range(hq)] for _ in range(count_q)]])
    lse = adapters.to_array([[[-math.inf] * count_q for _ in range(hq)]])
    parts = [blocks_of(data, size) for data, size in ((q, block_q), (k, block_kv), (v, block_kv))]
    steps = [(i, j) for i in range(len(parts[0])) for j in range(len(parts[1]))]
    rng.shuffle(steps)
    done = set()

    def visible(i, j):
        near = window is None or abs(i + shift - j) <= window
        return (i // block_q, j // block_kv) in done and near and (not causal or j <= i + shift)

    for number, (i, j) in enumerate(steps, 1):
        arrays = [adapters.to_array([part]) for part in (parts[0][i], parts[1][j], parts[2][j])]
        module.forward(*arrays, o, lse, i, j)
        done.add((i, j))
        if number % 3 and number < len(steps):
            continue
        for h in range(hq):
            hk = h // (hq // hkv)
            wanted = attend([x[h] for x in q], [x[hk] for x in k], [x[hk] for x in v], scale,
                            visible)
            found_o = [x[h] for x in adapters.to_list(o)[0]]
            # each merge rounds O and lse once more
            close(f"after step {number}, head {h}: o", found_o, wanted[0],
                  [[b * 2 + len(steps) * U * abs(x) * 4 for b, x in zip(*pair)]
                   for pair in zip(wanted[2], wanted[0])])
            close(f"after step {number}, head {h}: lse", adapters.to_list(lse)[0][h], wanted[1],
                  [2 * b + len(steps) * U * 4 * abs(x if b else 0.0)
                   for b, x in zip(wanted[3], wanted[1])])


def test_online_one_block():
    check_online((5, 5, 4), 8, 8, (1, 1), False, None)


def test_online_any_order():
    check_online((29, 37, 8), 8, 16, (2, 1), False, None)


def test_online_causal():
    check_online((37, 37, 8), 16, 8, (2, 2), True, None)


def test_online_window_with_rows_that_see_no_key():
    check_online((37, 21, 4), 8, 8, (1, 1), True, 6)


def slope(arrays, which, row, x, loss):
    """Of the loss, by one number of one array: a central difference. No formula of a gradient
    stands here, so that nobody can copy it."""
    step, kept, two = 1e-4, arrays[which][row][x], []
    for sign in (1, -1):
        arrays[which][row][x] = kept + sign * step
        two.append(loss(*arrays))
    arrays[which][row][x] = kept
    return (two[0] - two[1]) / (2 * step)


def check_backward(count_q, count_k, d, causal):
    """Some elements of each gradient, those of the last row among them."""
    rng = numbers("backward", count_q, count_k)
    q, k, v = rows(rng, count_q, d), rows(rng, count_k, d), rows(rng, count_k, d)
    do, scale = rows(rng, count_q, d), 1 / math.sqrt(d)
    visible = corner(q, k) if causal else everything

    def loss(*arrays):
        return sum(dot(*pair) for pair in zip(attend(*arrays, scale, visible)[0], do))

    o, lse = attend(q, k, v, scale, visible)[:2]
    found = adapters.flash_backward(*map(adapters.to_array, (q, k, v, o, lse, do)), scale, causal)
    for which, name in enumerate(("dq", "dk", "dv")):
        array, count = adapters.to_list(found[which]), (count_q, count_k, count_k)[which]
        assert [len(row) for row in array] == [d] * count, f"{name} has another shape"
        for row in [count - 1, *(rng.randrange(count) for _ in range(8))]:
            x = rng.randrange(d)
            wanted = slope([q, k, v], which, row, x, loss)
            close(f"{name}[{row}][{x}]", array[row][x], wanted, 1e-4 * (0.1 + abs(wanted)))


def test_backward_three_tokens():
    check_backward(3, 3, 2, False)


def test_backward_causal():
    check_backward(33, 45, 8, True)


def test_backward_rows_that_see_no_key():
    check_backward(40, 13, 8, True)


def run(word=""):
    """Each test of this file with the word in its name: (name, None or what was wrong)."""
    results = []
    for name, test in sorted(globals().items()):
        if name.startswith("test_") and word in name:
            try:
                test()
                results.append((name, None))
            except Exception as why:  # a student's code may raise anything
                results.append((name, f"{type(why).__name__}: {why}"))
    return results


if __name__ == "__main__":
    RESULTS = run(sys.argv[1] if sys.argv[1:] else "")
    if not RESULTS:
        sys.exit(f"found the word '{sys.argv[1]}', accepted is forward, online or backward")
    for test_name, wrong in RESULTS:
        print(f"{'ok    ' if wrong is None else 'wrong '} {test_name}"
              f"{'' if wrong is None else ': ' + wrong}")
    sys.exit(1 if any(wrong for _, wrong in RESULTS) else 0)
