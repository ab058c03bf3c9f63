"""The exponential function of sixteen numbers at once."""

from typing import Any

import numpy as np
from numba import njit

from turbospark_chat.models.kernels import vectors as v

_LEAST, _MOST = np.float32(-87.3), np.float32(88.3)  # beyond, the result is no longer a normal number
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# A number plus this has no bits left for a fraction, and its whole part in the last ones.
_TO_WHOLE = np.float32(1.5 * 2**23)


@njit
def exp(x: Any) -> Any:
    """Return e to the power of each number, to 2e-7 of its value: Cephes' expf. Below -87.3 it stays at 1e-38.

    What is no number stays none. http://www.netlib.org/cephes/
    """
    x = v.smaller(v.splat(_MOST), v.larger(v.splat(_LEAST), x))
    moved = v.fma(x, v.splat(_LOG2_E), v.splat(_TO_WHOLE))
    n = v.sub(moved, v.splat(_TO_WHOLE))  # x = n ln 2 + r
    r = v.fma(n, v.splat(-_LN2_LOW), v.fma(n, v.splat(-_LN2_HIGH), x))
    p = v.fma(v.splat(np.float32(1.9875691500e-4)), r, v.splat(np.float32(1.3981999507e-3)))
    p = v.fma(p, r, v.splat(np.float32(8.3334519073e-3)))
    p = v.fma(p, r, v.splat(np.float32(4.1665795894e-2)))
    p = v.fma(p, r, v.splat(np.float32(1.6666665459e-1)))
    p = v.fma(p, r, v.splat(np.float32(5.0000001201e-1)))
    p = v.add(v.fma(p, v.mul(r, r), r), v.splat(np.float32(1)))
    power = v.as_floats(v.shift_left(v.plus(v.as_words(moved), 127), 23))  # 2^n, by its exponent bits
    return v.mul(p, power)
