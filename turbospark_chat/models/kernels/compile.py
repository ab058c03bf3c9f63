"""From numba code to machine code for this processor, as an object file that can be kept."""

from llvmlite import binding
from numba import cfunc, types

from turbospark_chat.models.kernels.machine import make_target_machine
from turbospark_chat.models.kernels.sources import find_source

# numba's own calling convention: a place for the result, one for an error, the arguments; the status is the result.
_ENTRY = """
define void @{symbol}({parameters}) {{
  %result = alloca ptr
  %error = alloca ptr
  %status = call i32 @{native}(ptr %result, ptr %error, {parameters})
  ret void
}}
"""


def compile_kernel(name: str, symbol: str) -> bytes:
    """Compile a kernel; in the object file it is the function `symbol`, and nothing else is visible.

    The function is called as numba calls it, without the wrapper that makes Python errors: kernels raise none, and
    the wrapper needs numba in the process.
    """
    source, n_arguments = find_source(name)
    compiled = cfunc(types.void(*[types.int64] * n_arguments), nopython=True, error_model="numpy")(source)
    native = compiled.native_name.removeprefix("cfunc.")
    parameters = ", ".join(f"i64 %a{number}" for number in range(n_arguments))
    entry = _ENTRY.format(symbol=symbol, native=native, parameters=parameters)
    module = binding.parse_assembly(compiled.inspect_llvm() + entry)
    for function in module.functions:
        if function.name != symbol and not function.is_declaration:
            function.linkage = binding.Linkage.internal
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = binding.Linkage.internal
    machine = make_target_machine()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))
