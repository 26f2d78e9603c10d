"""Records the ATen ops that run, below autograd, where composite functions have been taken apart.

It keeps storages alive, so that no two share an address, but no tensor: autograd counts references.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from placeto_capture.errors import CaptureError, StepError
from placeto_capture.tracing.fake_memory import FakeMemory, Region
from placeto_capture.tracing.fake_objects import check_state
from placeto_capture.tracing.fake_results import (
    UnknownCountError,
    list_function,
    own_result,
    picked_result,
)
from placeto_capture.tracing.functions import ALLOCATIONS, PUTS, ZEROS, Function, function_of
from placeto_capture.tracing.known_values import CONSTANT, KnownValues
from placeto_capture.tracing.lifetimes import Lifetimes
from placeto_capture.tracing.origins import (
    AutogradNodes,
    BackwardPasses,
    ModuleScopes,
    RandomDraws,
    is_run_by_engine,
)
from placeto_capture.tracing.results import Arguments, Result, returns_values
from placeto_capture.tracing.step_spec import TracingOptions
from placeto_capture.tracing.trace import (
    Call,
    Op,
    Placeholder,
    Trace,
    View,
    tensor_leaves,
    view_in,
    views_in,
    whole_storage,
)
from placeto_capture.tracing.work import count_bytes, count_flops
from placeto_graphs import Phase

DEVICE_OF = torch.ops.prim.device.default
LIFT_FRESH = torch.ops.aten.lift_fresh.default


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops that run while it is entered; each region of ``memory`` is an op, too."""

    supports_higher_order_operators = True  # which it refuses

    def __init__(
        self,
        memory: FakeMemory,
        scopes: ModuleScopes,
        options: TracingOptions,
        results: dict[Hashable, Result] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Op] = []  # that ran so far
        self.scope = ""  # of ops that run outside of all modules
        self.phase = Phase.FORWARD  # of the ops that run
        self.update = 0  # number of the optimizer's step that runs, in the update phase
        self.fused: set[int] = set()  # numbers of those that are one kernel for each weight
        self.results = {} if results is None else results  # of calls that ran, by their kind
        self._is_in_list = False  # whether a function of lists of tensors runs
        self._memory = memory
        self.scopes = scopes
        self._mask_fraction = options.mask_fraction
        self._target = options.target
        self._storages: list[torch.UntypedStorage] = []
        self._index_of_storage: dict[int, int] = {}
        self._maker_of_storage: list[int] = []  # the last op that wrote each storage
        self._placeholder_of_storage: dict[int, tuple[int, Placeholder]] = {}
        self._allocations: dict[int, Call] = {}  # of storages without values
        self._nodes = AutogradNodes()
        self.passes = BackwardPasses(self._makers_of)
        self._draws = RandomDraws()
        self._known_values = KnownValues(self._storages)
        self._owner_of_storage: dict[int, int] = {}  # in updates: the op of its parameter
        self._lifetimes = Lifetimes(self._storages)
        scopes.after_outermost = self.hold_what_lives
        for region in memory.regions:
            name = next(iter(region.tensors))
            scope = "" if region.op_type == "input" else name.rpartition(".")[0]
            self._add_placeholder(name, scope, region)
        self._held_bytes = dict(self._bytes_of_named(options.parameter_bytes or {}))
        self._widths = {
            s: num_bytes / self._storages[s].nbytes() for s, num_bytes in self._held_bytes.items()
        }
        self._experts_per_token = options.experts_per_token
        self._cache = options.cache

    def _bytes_of_named(self, parameter_bytes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        """Yield the storages of parameters and inputs, and the bytes that they are held in."""
        placeholders = (op for op in self.ops if isinstance(op, Placeholder))
        holders = (op for op in placeholders if op.op_type in ("parameter", "input"))
        views = {name: view for op in holders for name, view in op.tensors.items()}
        for name, num_bytes in parameter_bytes.items():
            if name not in views:
                raise CaptureError(
                    f"parameter_bytes: expected names of parameters or inputs, got {name!r}"
                )
            if num_bytes < 1:
                raise CaptureError(
                    f"parameter_bytes: expected at least 1 for {name}, got {num_bytes}"
                )
            storage = views[name].storage
            if views[name].num_bytes != self._storages[storage].nbytes():
                raise CaptureError(
                    f"parameter_bytes: expected tensors with memory of their own, got {name}, "
                    "which shares a part of it"
                )
            yield storage, num_bytes

    def hold_what_lives(self) -> None:
        """Note which storages something besides the tracer refers to now; `trace` holds them."""
        if self.phase != Phase.BACKWARD:
            self._lifetimes.look()

    def trace(self, results: dict[str, torch.Tensor]) -> Trace:
        """Return what was recorded; what outlives the step is held, as are results and inputs."""
        for op, earlier_op in self.passes.turns.items():
            call = self.ops[op]
            if isinstance(call, Call):
                call.waits_for = (*call.waits_for, earlier_op)
        self._lifetimes.before_op(len(self.ops))
        storages = range(len(self._storages))
        outliving = {storage for storage in storages if self._lifetimes.lives(storage)}
        held_storages = outliving.union(self._lifetimes.living)
        placeholders = (op for op in self.ops if isinstance(op, Placeholder))
        inputs = (op for op in placeholders if not (op.is_resident or op.creates))
        return Trace(
            ops=self.ops,
            storage_bytes=[storage.nbytes() for storage in self._storages],
            results={name: self._look_up(self._fake(tensor)) for name, tensor in results.items()},
            held_storages=frozenset(held_storages.union(*(op.storages for op in inputs))),
            deaths=self._lifetimes.deaths,
            fused=frozenset(self.fused),
            held_bytes=self._held_bytes,
            cache=self._cache,
        )

    def add_gradient(self, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Record the gradient that a weight has before the step."""
        owner = self._maker_of_storage[self._look_up(weight).storage]
        view, scope = self._look_up(gradient, maker=len(self.ops)), self.ops[owner].scope
        self.ops.append(Placeholder(name, scope, "input", {name: view}, {}, belongs_to=owner))
        self._lifetimes.follow(gradient, view.storage)

    def add_state(self, parameter: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        """Record what the optimizer keeps for a parameter, by name; its updates touch that."""
        op, placeholder = self._placeholder_of_storage[self._look_up(parameter).storage]
        for name, tensor in state.items():
            placeholder.state[name] = self._look_up(tensor, maker=op)
            self._known_values.add_state(placeholder.state[name])
        storages = [*placeholder.storages]
        if parameter.grad is not None:
            storages.append(self._look_up(self._fake(parameter.grad)).storage)
        self._owner_of_storage.update(dict.fromkeys(storages, op))

    def count_as_update(self, first: int, scope: str) -> None:
        """Let the forward ops of a scope from one on be updates, but for those with gradients."""
        for op in range(first, len(self.ops)):
            call = self.ops[op]
            if not isinstance(call, Call) or self._nodes.has_node(op):
                continue
            if call.phase == Phase.FORWARD and call.scope == scope:
                call.phase, call.update = Phase.UPDATE, -self.update
                for storage in call.writes:
                    if storage in self._placeholder_of_storage:
                        owner, _ = self._placeholder_of_storage[storage]
                        self._owner_of_storage.setdefault(storage, owner)
                call.belongs_to, call.scope = self._owner_of_update(call)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op on fake tensors and record it."""
        if func is DEVICE_OF:
            return args[0].device
        if isinstance(func, HigherOrderOperator):
            raise StepError(
                f"expected a step without torch's {func}, whose parts are not captured; compute "
                "the same step by step, in a loop of Python"
            )
        kwargs = kwargs or {}
        function = function_of(func)
        take_apart = list_function(func, args)
        if take_apart is not None:
            with self, mock.patch.object(self, "_is_in_list", True):
                return take_apart(*args, **kwargs)
        if function.is_composite:  # which comes here whole in an inference mode
            with self:
                return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if func is not LIFT_FRESH:
            args, kwargs = tree_map(self._fake, (args, kwargs))
        # Autograd puts gradients in place, but for a dispatch mode it copies them.
        if f"{function.name}_" in PUTS and self._are_new_zeros(args[0]):
            in_place = getattr(torch.ops.aten, f"{func._opname}_")
            function = function_of(getattr(in_place, func._overloadname))
        return self._record(function, args, kwargs)

    def _are_new_zeros(self, tensor: torch.Tensor) -> bool:
        """Return whether the last op made a tensor of zeros for autograd alone."""
        if self.phase != Phase.BACKWARD or torch.is_grad_enabled():
            return False
        last = self.ops[-1]
        is_new = last.op_type in ZEROS and self._look_up(tensor).storage in last.creates
        return is_new and is_run_by_engine()

    def _record(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._lifetimes.before_op(len(self.ops))
        # An op may change what its arguments look like, so they are described before it runs.
        arguments = Arguments(args, kwargs, self._look_up)
        inputs = arguments.views
        node = self._nodes.before_op(arguments.tensors)
        rng_index = self._draws.number(function.overload)
        widths = [self._widths.get(storage) for storage in arguments.storages if self._widths]
        kind = function.overload, *widths, *arguments.kind
        known = None if arguments.has_values else self.results.get(kind)
        if known is None:
            returned = self._run(function, args, kwargs, arguments)
        else:
            returned = known.made(arguments, self._storages, self._memory.fake_mode)
        storages_before = len(self._storages)
        outputs = tuple(self._output_view(leaf) for leaf in tensor_leaves(returned))
        new_views = [
            view for view in outputs if view is not None and view.storage >= storages_before
        ]
        if known is None:
            work = self._work(function, args, kwargs, arguments, returned, new_views)
            known = Result.of(arguments, returned, outputs, self._storages, *work)
            if not (arguments.has_values or function.reshapes or returns_values(returned)):
                self.results[kind] = known
        written = [inputs[index] for index in known.written]
        if not (new_views or written):
            self._fold(outputs, node)
            return returned
        call = Call(
            function=function.overload,
            arguments=arguments.positional,
            keywords=arguments.keywords,
            outputs=outputs,
            creates=tuple(dict.fromkeys(view.storage for view in new_views)),
            phase=self.phase,
            flops=known.flops,
            bytes_accessed=known.bytes_accessed,
            rng_index=rng_index,
            update=self.update if self.phase == Phase.UPDATE else 0,
            shares_launch=self._is_in_list or self._target == "cpu",
        )
        if function.name in ALLOCATIONS and not written:
            self._allocations.update(dict.fromkeys(call.creates, call))
        else:
            self._append(call, inputs, written, node)
        return returned

    def _work(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
        returned: Any,
        new_views: list[View],
    ) -> tuple[list[View], int, int]:
        """Return what a call has written, its FLOPs and its bytes."""
        written = views_in(function.written(arguments.positional, arguments.keywords))
        if not (new_views or written):
            return [], 0, 0
        inputs = arguments.views
        flops = count_flops(function, args, kwargs, returned, (*inputs, *new_views))
        widths, experts = self._widths, self._experts_per_token
        num_bytes = count_bytes(function, args, kwargs, inputs, written, new_views, widths, experts)
        return written, flops, num_bytes

    def _run(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: Arguments,
    ) -> Any:
        """Run an op on fake tensors.

        A result that depends on values follows from known ones, or from a fraction that is picked.
        """
        func = function.overload
        try:
            result = own_result(function, args, kwargs, self._target)
            return func(*args, **kwargs) if result is None else result
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            arguments.has_values = True
            result = self._known_values.answer(func, arguments.positional, arguments.keywords)
            if result is not None:
                return result
            if isinstance(error, DataDependentOutputException):
                raise StepError(
                    f"{func.overloadpacket} asks for the value of a tensor, as .item(), bool(), "
                    "int() or an if on a tensor do, and capture has none; choose between tensors "
                    "with torch.where or a mask, or decide by numbers that are not tensors"
                ) from None
            return picked_result(function, args, kwargs, self._picked)

    def _output_view(self, tensor: torch.Tensor | None) -> View | None:
        if tensor is None:
            return None
        view = self._look_up(tensor, maker=len(self.ops))
        self._lifetimes.follow(tensor, view.storage)
        return view

    def _append(
        self, call: Call, inputs: list[View], written: list[View], node: int | None
    ) -> None:
        written_storages = dict.fromkeys(view.storage for view in written)
        read = [s for s in dict.fromkeys(v.storage for v in inputs) if s not in written_storages]
        for storage in read:
            if storage in self._allocations:  # the values of new memory are the allocation's
                self._append(self._allocations.pop(storage), [], [], None)
        first_written = [s for s in written_storages if self._allocations.pop(s, None) is not None]
        call.reads = tuple(read)
        call.creates = tuple(dict.fromkeys((*call.creates, *first_written)))
        call.writes = tuple(s for s in written_storages if s not in call.creates)
        call.belongs_to, call.scope = self._owner(call)
        call.waits_for = tuple(self.passes.comes_after)

        op = len(self.ops)
        makers = [self._maker_of_storage[s] for s in (*call.reads, *call.writes)]
        self.ops.append(call)
        for storage in (*call.creates, *call.writes):
            self._maker_of_storage[storage] = op
        self._known_values.follow(op, call)
        self._nodes.after_op(op, call.scope, node)
        self.passes.after_op(op, call, makers)

    def _fold(self, outputs: tuple[View | None, ...], node: int | None) -> None:
        """Let gradient ops of a view belong to the op that made its storage."""
        first = next((view for view in outputs if view is not None), None)
        if first is not None and first.storage not in self._allocations:
            maker = self._maker_of_storage[first.storage]
            self._nodes.after_op(maker, self._current_scope, node)

    @property
    def _current_scope(self) -> str:
        return self.scopes.innermost(self.scope)

    def _owner(self, call: Call) -> tuple[int | None, str]:
        """Return which op a call belongs to, and its scope."""
        if self.phase == Phase.UPDATE:
            return self._owner_of_update(call)
        if self.phase == Phase.FORWARD:
            return None, self._current_scope
        made_for = self._nodes.running()
        if isinstance(made_for, torch.Tensor):
            leaf = self._maker_of_storage[self._look_up(made_for).storage]
            made_for = leaf, self.ops[leaf].scope
        owner, scope = made_for or (None, self.scope)
        # Modules run in the backward phase where activations are computed again.
        return owner, self.scopes.innermost(scope)

    def _owner_of_update(self, call: Call) -> tuple[int | None, str]:
        owners = {
            self._owner_of_storage[storage]
            for storage in (*call.reads, *call.writes)
            if storage in self._owner_of_storage
        }
        if len(owners) != 1:
            return None, self.scope
        owner = owners.pop()
        self._owner_of_storage.update(dict.fromkeys(call.creates, owner))
        return owner, self.ops[owner].scope

    def _picked(self, elements: torch.Tensor | int) -> int:
        """Return how many elements a mask picks, or how many of so many are picked."""
        if isinstance(elements, torch.Tensor):
            count = self._known_values.result(
                lambda mask: int(mask.count_nonzero()), (self._look_up(elements),), {}
            )
            if count is not None:
                return int(count)
            elements = elements.numel()
        if self._mask_fraction is None:
            raise UnknownCountError
        return math.ceil(self._mask_fraction * elements)

    @property
    def _constant_name(self) -> str:
        return f"{self._current_scope}.{CONSTANT}" if self._current_scope else CONSTANT

    def _fake(self, value: Any) -> Any:
        """Return what stands for a real tensor, which may be neither the model's nor an input."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if id(value) not in self._memory.fake_of:
            if self.phase == Phase.UPDATE:
                check_state(value)
            if value.requires_grad:
                raise StepError(
                    "expected tensors that are inputs or parameters of the model, got another one "
                    f"of shape {tuple(value.shape)} that requires a gradient; register it as a "
                    "parameter"
                )
            self._add_constant(value)
        return self._memory.fake_of[id(value)]

    def _add_constant(self, tensor: torch.Tensor) -> None:
        region, name = self._memory.add_constant(self._constant_name, tensor)
        index = self._index_of_storage.get(region.storage._cdata, -1)
        if index in self._placeholder_of_storage:
            _, placeholder = self._placeholder_of_storage[index]
            fake, _ = region.tensors[name]
            placeholder.tensors[name] = self._look_up(fake)
            placeholder.values[name] = tensor
        else:
            self._add_placeholder(name, self._current_scope, region)

    def _add_placeholder(self, name: str, scope: str, region: Region) -> None:
        """Record an op that holds the tensors of a region."""
        placeholder, op = Placeholder(name, scope, region.op_type, {}, {}), len(self.ops)
        self.ops.append(placeholder)
        for key, (fake, value) in region.tensors.items():
            placeholder.tensors[key] = self._look_up(fake, maker=op)
            placeholder.values[key] = value
            self._placeholder_of_storage[placeholder.tensors[key].storage] = op, placeholder
        self._known_values.add(placeholder)

    def _makers_of(self, tensors: Iterable[torch.Tensor | None]) -> list[int]:
        storages = (
            _unwrapped(tensor).untyped_storage() for tensor in tensors if tensor is not None
        )
        indices = (self._index_of_storage.get(storage._cdata) for storage in storages)
        made_storages = [s for s in indices if s is not None and s not in self._allocations]
        makers = (self._maker_of_storage[storage] for storage in made_storages)
        return [op for op in makers if isinstance(self.ops[op], Call)]

    def _look_up(self, tensor: torch.Tensor, maker: int | None = None) -> View:
        """Return the reference to a tensor, whose storage may be new: then ``maker`` made it."""
        if tensor.layout is not torch.strided:
            raise StepError(
                f"expected dense tensors, got one of layout {tensor.layout}; multiply by a dense "
                "one, and make embeddings with sparse=False"
            )
        storage = tensor.untyped_storage()
        index = self._index_of_storage.get(storage._cdata)
        if index is None:
            index = len(self._storages)
            self._index_of_storage[storage._cdata] = index
            self._storages.append(storage)
            if maker is None:
                maker = self._add_unknown(tensor, index)
            self._maker_of_storage.append(maker)
        return view_in(tensor, index)

    def _add_unknown(self, tensor: torch.Tensor, storage: int) -> int:
        """Record an op that holds a fake tensor which nothing that was recorded has made."""
        name = self._constant_name
        whole = whole_storage(storage, tensor.untyped_storage().nbytes())
        self.ops.append(Placeholder(name, self._current_scope, "input", {name: whole}, {}))
        if self.phase == Phase.UPDATE:
            self._known_values.add_state(view_in(tensor, storage))
        return len(self.ops) - 1


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that those of `torch.func` are about."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
