"""An LSTM on sequences of different lengths, and online
=====================================================

Sequences of any lengths in one batch, or step by step as the numbers arrive: the states are the
same, bit for bit.

Layer norm takes its statistics from one step of one sequence, so nothing depends on the batch.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/lstm_ragged_online.py``
"""

import matplotlib.pyplot as plt
import numpy as np

from numnorm import rnn

# %%
# A batch of six sequences
# ------------------------
#
# Time comes first, and the end of a shorter sequence may hold anything: it is never read. Here it
# is NaN.

rng = np.random.default_rng(1)
lengths = np.array([40, 33, 27, 18, 9, 4])
x = rng.standard_normal((lengths.max(), len(lengths), 3), dtype=np.float32).cumsum(axis=0) / 4
for sequence, length in enumerate(lengths):
    x[length:, sequence] = np.nan

parameters = rnn.lstm_init(3, 16, rng=rng)  # 3 inputs, 16 units, layer norm
y, last_h, last_c, saved = rnn.lstm_forward(x, parameters, lengths=lengths)
print(f"states: {y.shape}, last states: {last_h.shape}")

figure, axes = plt.subplots(2, 3, figsize=(5.6, 3.8), sharex=True, sharey=True)
for sequence, panel in enumerate(axes.flat):
    states = np.ma.masked_array(y[:, sequence].T)
    states[:, lengths[sequence] :] = np.ma.masked
    image = panel.imshow(states, aspect="auto", cmap="coolwarm", vmin=-1, vmax=1)
    panel.set(title=f"{lengths[sequence]} steps")
    panel.title.set_fontsize("medium")
axes[0, 0].set(yticks=[0, 15], yticklabels=["1", "16"])
figure.colorbar(image, ax=axes, label="state", ticks=[-1, 0, 1])
figure.supxlabel("step", fontsize="medium")
figure.supylabel("unit", fontsize="medium")
plt.show()

# %%
# Online
# ------
#
# ``lstm_pack`` brings the weights into the order that a step wants, once. Then each step costs one
# call.

packed = rnn.lstm_pack(parameters)


def online(steps):
    """Yield the state after each step of one sequence."""
    h = c = None
    for step in steps:
        h, c = rnn.lstm_cell(step[None], packed, h, c)
        yield h[0]


for sequence, length in enumerate(lengths):
    states = np.array(list(online(x[:length, sequence])))
    same = states.tobytes() == np.ascontiguousarray(y[:length, sequence]).tobytes()
    print(f"{length:3} steps, one by one: the same bytes {same}")
    assert same

# %%
# Backward
# --------
#
# The gradient of the last states goes back to the first step of each sequence, and is 0 beyond its
# last one.

gradients = rnn.lstm_backward(np.zeros_like(y), saved, dh=np.ones_like(last_h))
sizes = np.linalg.norm(gradients.dx, axis=2)

figure, panel = plt.subplots(figsize=(5.6, 2.9))
for sequence, length in enumerate(lengths[:5]):
    steps = np.arange(1, length + 1)
    panel.semilogy(steps, sizes[:length, sequence], linewidth=1.6, color=f"C{sequence}")
    panel.semilogy(length, sizes[length - 1, sequence], "o", color=f"C{sequence}")
    assert not sizes[length:, sequence].any()
panel.set(
    xlabel="step; the dot is the last one of the sequence", ylabel="size of the gradient of x"
)
plt.show()
