"""The processor that kernels are compiled for, and loading them. Not numba's work: its import takes 0.2 s."""

from collections.abc import Iterable

import llvmlite
from llvmlite import binding


def describe_machine() -> str:
    """Return what machine code depends on, as text.

    Raises:
        OSError: a processor that kernels cannot be compiled for.
    """
    if binding.get_process_triple().startswith("x86_64") and not binding.get_host_cpu_features().get("f16c"):
        # LLVM would call a function that no library here has.
        raise OSError("this processor cannot read float16")
    return " ".join(
        (
            binding.get_process_triple(),
            binding.get_host_cpu_name(),
            binding.get_host_cpu_features().flatten(),
            llvmlite.__version__,  # each goes with one numba
        )
    )


def has_wide_registers() -> bool:
    """Whether there are 32 registers of sixteen float32, rather than 16 of eight, or 32 of four."""
    return bool(binding.get_host_cpu_features().get("avx512f"))


def make_target_machine() -> binding.TargetMachine:
    """Return LLVM's description of this processor, every extension included."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


class LoadedCode:
    """Object files linked into this process. The functions are valid as long as this lives."""

    def __init__(self, object_files: Iterable[bytes]) -> None:
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), make_target_machine())
        for object_file in object_files:
            self._engine.add_object_file(binding.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()

    def address_of(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            OSError: the object files have no such function.
        """
        address = int(self._engine.get_function_address(symbol))
        if address == 0:
            raise OSError(f"`{symbol}` is missing")
        return address
