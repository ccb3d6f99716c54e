"""One component of a recipe: its methods, and how it is prepared, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from aotbuild.reading import one_of, read
from aotbuild.recipe.backends import BACKENDS
from aotbuild.recipe.call import Scalar

METHODS = ("forward", "decode", "encode")
MEMORY_FORMATS = ("contiguous", "channels_last")
ATTENTIONS = tuple(BACKENDS)
QUANTIZATIONS = ("none", "int8dq")
CPU_FIELDS = ("memory_format", "fuse_qkv", "attention", "quantization")
PREPARATIONS = ("real_rotary",)
ARGUMENT_RULES = ("timestep/1", "scalar/1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Filter:
    """Which linear layers are quantized to int8.

    Attributes:
        min_in_features: layers with fewer input features stay as they are.
        skip_shapes: (input features, output features) of layers that stay as they are.
        skip_layers: shell patterns of paths that stay as they are: "proj_out", "*.norm*.linear".
        pointwise_channels: 1x1 convolutions with as many input or output channels are made linear
            layers first.
    """

    min_in_features: int = 1
    skip_shapes: tuple[tuple[int, int], ...] = ()
    skip_layers: tuple[str, ...] = ()
    pointwise_channels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.min_in_features < 0:
            raise ValueError(f"min_in_features: {self.min_in_features} is less than 0")
        for shape in self.skip_shapes:
            if len(shape) != 2:
                raise ValueError(f"skip_shapes: {list(shape)} isn't [in_features, out_features]")
        for name, values in (
            ("skip_shapes", [n for shape in self.skip_shapes for n in shape]),
            ("pointwise_channels", self.pointwise_channels),
        ):
            if any(n < 1 for n in values):
                raise ValueError(f"{name}: {min(values)} is no width of a layer; they begin at 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRecipe:
    """One component of the pipeline, and how it is prepared.

    Attributes:
        methods: the methods to compile: "forward", "decode", "encode".
        architecture: where its config is, as a recipe's `architecture`, if not with the others: a
            ControlNet has a checkpoint of its own.
        memory_format: of its convolution weights.
        fuse_qkv: query, key and value projections as one matrix product.
        attention: of `ATTENTIONS`: "sdpa", "math" for plain arithmetic, or a backend by the name
            that diffusers' dispatcher has for it.
        quantization: "none", or "int8dq": int8 weights by row, int8 activations by row at each
            call.
        int8: which layers "int8dq" quantizes; a component without it is never quantized.
        ip_adapters: for each IP-Adapter that the pipeline has loaded, the width of its image
            embeddings.
        tiling: whether the service calls `enable_tiling` on it.
        preparations: of `PREPARATIONS`, what else is done to the module before export.
        blocks: classes of the repeated blocks that the regional scope compiles; none: those that
            the component's class names as `_repeated_blocks`.
        rules: argument name -> the rule that brings it to one form, of `ARGUMENT_RULES`.
        inductor: options of `torch._inductor.config`, by dotted name.
        cpu: fields of `CPU_FIELDS` that differ where the target is a CPU, whose weights are often
            mapped from a file: another layout would copy all of them at every start.
    """

    methods: tuple[str, ...]
    architecture: str | None = None
    memory_format: str = "contiguous"
    fuse_qkv: bool = False
    attention: str = "sdpa"
    quantization: str = "none"
    int8: Int8Filter | None = None
    ip_adapters: tuple[int, ...] = ()
    tiling: bool = False
    preparations: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    rules: dict[str, str] = field(default_factory=dict)
    inductor: dict[str, Scalar] = field(default_factory=dict)
    cpu: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for method in self.methods:
            one_of("methods", method, METHODS)
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ValueError("methods: name each method once, and at least one")
        if "forward" in self.methods and len(self.methods) > 1:
            raise ValueError("methods: a component is called by forward, or by decode and encode")
        one_of("memory_format", self.memory_format, MEMORY_FORMATS)
        one_of("attention", self.attention, ATTENTIONS)
        one_of("quantization", self.quantization, QUANTIZATIONS)
        if self.quantization != "none" and self.int8 is None:
            raise ValueError(
                f"quantization = {self.quantization!r} needs a table `int8` that says which layers"
            )
        for preparation in self.preparations:
            one_of("preparations", preparation, PREPARATIONS)
        if len(set(self.preparations)) != len(self.preparations):
            raise ValueError("preparations: name each once")
        for block in self.blocks:
            if not block.isidentifier() or self.blocks.count(block) > 1:
                raise ValueError(f"blocks: {block!r} isn't the name of a class, named once")
        for rule in self.rules.values():
            one_of("rules", rule, ARGUMENT_RULES)
        if self.fuse_qkv and self.attention == "math":
            raise ValueError(
                "fuse_qkv needs attention = 'sdpa': diffusers' fused processors call SDPA"
            )
        if self.ip_adapters and (self.fuse_qkv or self.attention == "math"):
            raise ValueError("ip_adapters: their attention is neither fused nor plain")
        if self.cpu:
            for name in self.cpu:
                one_of("cpu", name, CPU_FIELDS)
            self.on("cpu")

    def quantized(self, quantization: str) -> ComponentRecipe:
        """This component with that quantization on every device, where it has a filter for it."""
        if self.int8 is None:
            return self
        cpu = {name: value for name, value in self.cpu.items() if name != "quantization"}
        return replace(self, quantization=quantization, cpu=cpu)

    def attending(self, attention: str) -> ComponentRecipe:
        """This denoiser with that attention backend on every device; other components as they are.

        Plain arithmetic knows no fused projections.
        """
        if self.methods != ("forward",):
            return self
        cpu = {name: value for name, value in self.cpu.items() if name != "attention"}
        if attention == "math":
            cpu.pop("fuse_qkv", None)
        fuse_qkv = self.fuse_qkv and attention != "math"
        return replace(self, attention=attention, fuse_qkv=fuse_qkv, cpu=cpu)

    def on(self, device: str) -> ComponentRecipe:
        """This component as it is prepared for `device`, "cpu" or "cuda"."""
        found: ComponentRecipe = read(
            ComponentRecipe,
            {**asdict(self), "cpu": {}, **(self.cpu if device == "cpu" else {})},
            "cpu" if device == "cpu" else "",
        )
        return found
