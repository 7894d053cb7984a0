"""The kinds of recurrent cells: a declaration of each, and its parameters with their checks."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, check_dtype, check_generator, check_integer, check_shape
from numnorm.backends.contract.backend import RecurrentBackend
from numnorm.rnn.specs import (
    NONLINEARITIES,
    NORMS,
    RESETS,
    VARIANTS,
    Spec,
    gru_spec,
    lstm_spec,
    rnn_spec,
)

Array = np.ndarray[Any, Any]


class LSTMParameters(NamedTuple):
    """The parameters of an LSTM with I inputs and H units; gates in the order f, i, o, g.

    Attributes
    ----------
    weight_x : array (4H, I)
        W_x, for the input.
    weight_h : array (4H, H)
        W_h, for the state.
    bias : array (4H,), optional
        b. Default: 0.
    gamma_x, beta_x : array (4H,), optional
        Gain and bias of the norm of W_x x.
    gamma_h, beta_h : array (4H,), optional
        Gain and bias of the norm of W_h h; of the gates with ``variant="per_gate"``.
    gamma_c, beta_c : array (H,), optional
        Gain and bias of the norm of the cell. All gains are 1 by default, and all biases 0.
        Gains of size 0 belong to parameters without a norm.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.LSTMParameters(rng.normal(size=(8, 3)), rng.normal(size=(8, 2)))
    >>> parameters = parameters._replace(gamma_c=np.full(2, 0.5))
    >>> rnn.lstm(rng.normal(size=(5, 4, 3)), parameters).y.shape
    (5, 4, 2)
    """

    weight_x: Any
    weight_h: Any
    bias: Any = None
    gamma_x: Any = None
    beta_x: Any = None
    gamma_h: Any = None
    beta_h: Any = None
    gamma_c: Any = None
    beta_c: Any = None


class ProjectedLSTMParameters(NamedTuple):
    r"""The parameters of an LSTM with I inputs and H units whose state has P elements [1]_.

    The state is :math:`W_p (\sigma(o) \tanh(N(c_t; \gamma_c, \beta_c)))`. This is
    ``torch.nn.LSTM`` with ``proj_size``.

    Attributes
    ----------
    weight_x : array (4H, I)
        W_x, for the input.
    weight_h : array (4H, P)
        W_h, for the state.
    projection : array (P, H)
        W_p.
    bias, gamma_x, beta_x, gamma_h, beta_h, gamma_c, beta_c : array, optional
        As in `LSTMParameters`.

    References
    ----------
    .. [1] H. Sak, A. Senior, F. Beaufays, "Long Short-Term Memory Recurrent Neural Network
       Architectures for Large Scale Acoustic Modeling", Interspeech 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.lstm_init(3, 4, rng=rng, proj_size=2)
    >>> parameters.weight_h.shape, parameters.projection.shape
    ((16, 2), (2, 4))
    >>> rnn.lstm(rng.normal(size=(5, 4, 3)), parameters).h.shape
    (4, 2)
    """

    weight_x: Any
    weight_h: Any
    projection: Any
    bias: Any = None
    gamma_x: Any = None
    beta_x: Any = None
    gamma_h: Any = None
    beta_h: Any = None
    gamma_c: Any = None
    beta_c: Any = None


class GRUParameters(NamedTuple):
    """The parameters of a gated recurrent unit with I inputs and H units, in the order z, r, new.

    Attributes
    ----------
    weight_x : array (3H, I)
        W_x above W, for the input.
    weight_h : array (3H, H)
        W_h above U, for the state.
    bias : array (3H,), optional
        b. Default: 0.
    bias_h : array (H,), optional
        b_h, inside the product with r if `reset_after` is true. Default: 0. One of size 0 belongs
        to parameters for ``reset_after=False``.
    gamma_x, beta_x : array (3H,), optional
        Gains and biases of the norms of W_x x and W x.
    gamma_h, beta_h : array (3H,), optional
        Gains and biases of the norms of W_h h and U h. All gains are 1 by default, all biases 0.
        Gains of size 0 belong to parameters without a norm.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.GRUParameters(rng.normal(size=(6, 3)), rng.normal(size=(6, 2)))
    >>> parameters = parameters._replace(gamma_h=np.full(6, 0.5))
    >>> rnn.gru(rng.normal(size=(5, 4, 3)), parameters).y.shape
    (5, 4, 2)
    """

    weight_x: Any
    weight_h: Any
    bias: Any = None
    bias_h: Any = None
    gamma_x: Any = None
    beta_x: Any = None
    gamma_h: Any = None
    beta_h: Any = None


class RNNParameters(NamedTuple):
    """The parameters of a plain recurrent network with I inputs and H units.

    Attributes
    ----------
    weight_x : array (H, I)
        W_x, for the input.
    weight_h : array (H, H)
        W_h, for the state.
    bias : array (H,), optional
        b. Default: 0.
    gamma, beta : array (H,), optional
        Gain and bias of the norm. Default: 1 and 0. A gain of size 0 belongs to parameters
        without a norm.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.RNNParameters(rng.normal(size=(2, 3)), rng.normal(size=(2, 2)))
    >>> parameters = parameters._replace(gamma=np.full(2, 0.5))
    >>> rnn.rnn(rng.normal(size=(5, 4, 3)), parameters).y.shape
    (5, 4, 2)
    """

    weight_x: Any
    weight_h: Any
    bias: Any = None
    gamma: Any = None
    beta: Any = None


class Kind(NamedTuple):
    """A kind of recurrent cell, as everything that serves all of them takes it.

    Attributes
    ----------
    name : str
        The name of its function, with which the names of its other functions begin.
    parameters : type
        The NamedTuple of its parameters.
    gates : tuple of str
        The gates in the order of the rows of the weights, which have one for each unit.
    sizes : mapping
        The number of elements for each unit of each other parameter.
    states : tuple of str
        The names of its states.
    options : mapping
        The arguments that determine its spec, each with its choices, the default first.
    make_spec : callable
        Returns the spec for a choice of each option.
    """

    name: str
    parameters: Any
    gates: tuple[str, ...]
    sizes: Mapping[str, int]
    states: tuple[str, ...]
    options: Mapping[str, tuple[Any, ...]]
    make_spec: Callable[..., Spec]

    def __reduce__(self) -> str:
        # A name of this module: LSTM, PROJECTED_LSTM, GRU or RNN.
        return "PROJECTED_LSTM" if self.parameters is ProjectedLSTMParameters else self.name.upper()

    @property
    def rows(self) -> str:
        """The number of rows of the weights, for messages."""
        return f"{len(self.gates)}H" if len(self.gates) > 1 else "H"

    def choices_of(self, spec: Spec) -> tuple[Any, ...]:
        """Return the choices for which `make_spec` returns a spec."""
        every = itertools.product(*self.options.values())
        return next(choices for choices in every if self.make_spec(*choices) == spec)


LSTM = Kind(
    name="lstm",
    parameters=LSTMParameters,
    gates=("f", "i", "o", "g"),
    sizes=dict.fromkeys(("bias", "gamma_x", "beta_x", "gamma_h", "beta_h"), 4)
    | dict.fromkeys(("gamma_c", "beta_c"), 1),
    states=("h", "c"),
    options={"norm": NORMS, "variant": VARIANTS},
    make_spec=lstm_spec,
)
PROJECTED_LSTM = LSTM._replace(parameters=ProjectedLSTMParameters)
GRU = Kind(
    name="gru",
    parameters=GRUParameters,
    gates=("z", "r", "new"),
    sizes=dict.fromkeys(("bias", "gamma_x", "beta_x", "gamma_h", "beta_h"), 3) | {"bias_h": 1},
    states=("h",),
    options={"norm": NORMS, "reset_after": RESETS},
    make_spec=gru_spec,
)
RNN = Kind(
    name="rnn",
    parameters=RNNParameters,
    gates=("new",),
    sizes=dict.fromkeys(("bias", "gamma", "beta"), 1),
    states=("h",),
    options={"norm": NORMS, "nonlinearity": NONLINEARITIES},
    make_spec=rnn_spec,
)
KINDS = LSTM, PROJECTED_LSTM, GRU, RNN


def kind_of(kind: Kind, parameters: Any) -> Kind:
    """Return the kind, or that of an LSTM with projections if the parameters are of one."""
    projected = kind is LSTM and isinstance(parameters, ProjectedLSTMParameters)
    return PROJECTED_LSTM if projected else kind


def without_norm(kind: Kind, dtype: Any) -> dict[str, Any]:
    """Return the gains of parameters that only ``norm=None`` may use: they have size 0."""
    # Arrays, which optimizers and files keep, and not a mark beside the parameters.
    return {name: np.empty(0, dtype) for name in _gains(kind)}


def is_mark(value: Any) -> bool:
    """Return whether a parameter has size 0: a gain of `without_norm`, or a `bias_h` with no r.

    It may be a list, as from a file.
    """
    empty = isinstance(value, list | tuple) and not value
    return empty or tuple(getattr(value, "shape", (1,))) == (0,)


def check_resets_after(bias_h: Any, reset_after: bool) -> None:
    """Raise if a GRU scales the product by r, and its parameters are of one that scales h."""
    if reset_after and is_mark(bias_h):
        raise ValueError(
            "reset_after must be False for parameters that were made so (bias_h has size 0): write "
            "reset_after=False, or parameters._replace(bias_h=None) for a bias of 0"
        )


def _gains(kind: Kind) -> list[str]:
    return [name for name in kind.sizes if name.startswith("gamma")]


def named(kind: Kind, parameters: Any) -> Any:
    """Return the parameters of a kind, also if they are a plain tuple."""
    if not isinstance(parameters, tuple) or len(parameters) != len(kind.parameters._fields):
        expected = kind.parameters.__name__
        article = "an" if expected[0] in "LR" else "a"
        raise TypeError(
            f"parameters must be {article} {expected}, "
            f"got an object of type {type(parameters).__name__}"
        )
    return kind.parameters(*parameters)


def checked(
    kind: Kind,
    parameters: Any,
    spec: Spec,
    x: Any,
    backend: RecurrentBackend,
    inputs: int | None = None,
) -> Any:
    """Return the checked parameters of a kind for a backend: C-contiguous, in the dtype of x.

    `inputs` None takes the number of inputs from weight_x.
    """
    unchecked = named(kind, parameters)

    def converted(name: str, check: Callable[[Shape], None]) -> Any:
        value = getattr(unchecked, name)
        if value is None:
            raise TypeError(f"{name} must be an array, got None")
        return backend.cell_parameter(name, value, x, check)

    def of_shape(name: str, *expected: int) -> Any:
        meaning = "that of the units and inputs"
        return converted(name, lambda shape: check_shape(name, shape, expected, meaning))

    values = {}
    if kind is PROJECTED_LSTM:
        projection = values["projection"] = converted("projection", _check_projection)
        size, hidden = projection.shape
        weight_h = of_shape("weight_h", len(kind.gates) * hidden, size)
    else:
        weight_h = converted("weight_h", lambda shape: _check_hidden(kind, shape))
        hidden = weight_h.shape[1]
    rows = weight_h.shape[0]
    values |= {
        "weight_x": of_shape("weight_x", rows, inputs)
        if inputs is not None
        else converted("weight_x", lambda shape: _check_inputs(shape, rows)),
        "weight_h": weight_h,
    }
    for name, size in kind.sizes.items():
        value = getattr(unchecked, name)
        if name in _gains(kind) and is_mark(value):
            if spec.normalizes:
                changes = ", ".join(f"{gain}=None" for gain in _gains(kind))
                raise ValueError(
                    f"norm must be None for parameters that were made without a norm ({name} has "
                    f"size 0): write norm=None, or parameters._replace({changes}) for gains of 1"
                )
            values[name] = None
        elif name == "bias_h" and is_mark(value):
            check_resets_after(value, spec.resets_after)
            values[name] = None
        elif value is None:
            values[name] = None
        elif name.startswith(("gamma", "beta")) and name not in spec.parameters:
            raise ValueError(f"{name} must be None, as this norm and variant do not use it")
        else:
            values[name] = of_shape(name, size * hidden)
    return kind.parameters(**values)


def _check_hidden(kind: Kind, shape: Shape) -> None:
    if len(shape) != 2 or shape[0] != len(kind.gates) * shape[1] or shape[1] == 0:
        raise ValueError(
            f"weight_h must have shape ({kind.rows}, H) with H at least 1, got {shape}"
        )


def _check_projection(shape: Shape) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"projection must have shape (P, H) with both at least 1, got {shape}")


def _check_inputs(shape: Shape, rows: int) -> None:
    if len(shape) != 2 or shape[0] != rows:
        raise ValueError(f"weight_x must have shape ({rows}, I), got {shape}")


def initial(
    kind: Kind,
    spec: Spec,
    inputs: Any,
    hidden: Any,
    rng: np.random.Generator,
    dtype: Any,
    proj_size: Any = None,
) -> Any:
    """Return the first parameters of a kind: random weights, gains of 1, biases of 0."""
    inputs, hidden = check_integer("inputs", inputs, 1), check_integer("hidden", hidden, 1)
    dtype = check_dtype(dtype)
    size = hidden if proj_size is None else check_integer("proj_size", proj_size, 1)
    if size > hidden:
        raise ValueError(f"proj_size must be at most {hidden}, the number of units, got {size}")
    check_generator(rng)
    values = {
        "weight_x": np.concatenate([_glorot(rng, hidden, inputs) for _ in kind.gates]),
        "weight_h": np.concatenate([_orthogonal(rng, hidden)[:, :size] for _ in kind.gates]),
    }
    if proj_size is not None:
        values["projection"] = _glorot(rng, size, hidden)
        kind = PROJECTED_LSTM
    for name, size in kind.sizes.items():
        if name in spec.parameters or name.startswith("bias"):
            gain = 0.1 if spec.batch else 1.0  # as in Cooijmans et al.
            values[name] = np.full(size * hidden, gain if name.startswith("gamma") else 0.0)
    if kind.gates[0] == "f":  # the forget gate
        values["bias"][:hidden] = 1.0
    with np.errstate(under="ignore"):  # a number may be below the range of the dtype
        return kind.parameters(**{name: value.astype(dtype) for name, value in values.items()})


def _orthogonal(generator: np.random.Generator, size: int) -> Array:
    """Return a uniformly distributed random orthogonal matrix (Mezzadri 2007)."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def _glorot(generator: np.random.Generator, units: int, inputs: int) -> Array:
    """Return uniform weights of variance 2 / (inputs + units) (Glorot and Bengio 2010)."""
    bound = np.sqrt(6.0 / (inputs + units))
    return generator.uniform(-bound, bound, (units, inputs))
