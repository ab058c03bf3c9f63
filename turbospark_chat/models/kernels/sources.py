"""Every kernel by name, and the numba code behind it."""

from collections.abc import Callable, Mapping

from turbospark_chat.models.kernels import attention_many, attention_one, elementwise, linear, phases, tile
from turbospark_chat.models.quants import GgmlType

_PLAIN: Mapping[str, Callable[..., None]] = {
    "run": phases.run,
    "rms_norm": elementwise.rms_norm,
    "add": elementwise.add,
    "scale": elementwise.scale,
    "swiglu": elementwise.swiglu,
    "geglu": elementwise.geglu,
    "rope": elementwise.rope,
    "remember": elementwise.remember,
    "by_token": elementwise.by_token,
    "last": elementwise.last,
    "read": elementwise.read,
}
_BY_NUMBER: Mapping[str, Callable[[int], Callable[..., None]]] = {
    "tile": tile.make_tile,
    "attention_one": attention_one.make_attention_one,
    "attention_many": attention_many.make_attention_many,
    "combine": attention_one.make_combine,
}
_BY_FORMAT = {"linear": linear.make_linear, "embed": linear.make_embed}
_N_ARGUMENTS = {"run": 3, "tile": 9}  # of int64; a kernel has 4


def find_source(name: str) -> tuple[Callable[..., None], int]:
    """Return the Python function of a kernel and its number of arguments. `name`: "add", "linear Q4_1", "tile 4"."""
    kind, _, parameter = name.partition(" ")
    n_arguments = _N_ARGUMENTS.get(kind, 4)
    if kind in _BY_FORMAT:
        return _BY_FORMAT[kind](GgmlType[parameter]), n_arguments
    if kind in _BY_NUMBER:
        return _BY_NUMBER[kind](int(parameter)), n_arguments
    return _PLAIN[kind], n_arguments
