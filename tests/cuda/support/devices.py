"""Limits of some devices, as their drivers report them."""

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits

H200 = DeviceLimits(132, 232448, 233472, 2048, 65536, cooperative=True)
RTX4090 = DeviceLimits(128, 101376, 102400, 1536, 65536, cooperative=True)
T4 = DeviceLimits(40, 65536, 65536, 1024, 65536, cooperative=True)


def of_multiprocessors(count):
    return H200._replace(multiprocessors=count)
