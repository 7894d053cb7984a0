"""A layer norm that PyTorch differentiates
========================================

The two passes of numnorm in a function of autograd.

.. picture:: runs.torch_autograd
   :alt: Two losses that fall with the steps, one upon the other.

   A recorded run: the losses of one network with either norm.

The functions of numnorm record no gradient, so they refuse a tensor that requires one. Inside of a
``torch.autograd.Function`` nothing is recorded, and they take it. Other norms go the same way.
In the folder of the sources: ``pip install . torch``, then
``python docs/gallery/torch_autograd.py``
"""

# sphinx_gallery_thumbnail_path = "generated/pictures/runs.torch_autograd-light.svg"

import torch

import numnorm


class LayerNormFunction(torch.autograd.Function):
    """Layer norm over the last axis, with gradients for x, gamma and beta."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        """Return the normalized tensor, and save what the gradient needs."""
        y, mean, rstd = numnorm.layer_norm_forward(x, gamma, beta, eps=eps)
        ctx.save_for_backward(x, mean, rstd, gamma)
        return y

    @staticmethod
    def backward(ctx, dy):
        """Return the gradients of the arguments of `forward`."""
        if torch.is_grad_enabled():  # with create_graph=True
            raise NotImplementedError("the layer norm has no second derivatives")
        x, mean, rstd, gamma = ctx.saved_tensors
        gradients = numnorm.layer_norm_backward(dy, x, mean, rstd, gamma)
        wanted = zip(gradients, ctx.needs_input_grad, strict=False)  # eps has none
        return *(gradient if needed else None for gradient, needed in wanted), None


class LayerNorm(torch.nn.Module):
    """A module in place of ``torch.nn.LayerNorm``, for tensors on the CPU."""

    def __init__(self, width, eps=1e-5, dtype=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(width, dtype=dtype))
        self.eps = eps

    @torch.compiler.disable  # numnorm's kernels are compiled already
    def forward(self, x):
        """Return the normalized tensor."""
        return LayerNormFunction.apply(x, self.weight, self.bias, self.eps)


def trained(norm, steps=50):
    """Return the losses of a small network with a norm, step by step."""
    torch.manual_seed(0)
    x, wanted = torch.randn(64, 10) + 5.0, torch.randn(64, 1)
    net = torch.nn.Sequential(
        torch.nn.Linear(10, 32), norm, torch.nn.Tanh(), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(net(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    """Check the gradients by differences, and train beside PyTorch's own norm."""
    torch.manual_seed(0)
    tensors = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((4, 7), 7, 7)]
    right = torch.autograd.gradcheck(LayerNormFunction.apply, (*tensors, 1e-5))
    print(f"gradients agree with finite differences: {right}")
    mine, own = trained(LayerNorm(32)), trained(torch.nn.LayerNorm(32))
    print(f"loss after {len(mine)} steps: {mine[-1]:.5f}, with torch.nn.LayerNorm {own[-1]:.5f}")
    return right, mine, own


if __name__ == "__main__":
    main()
