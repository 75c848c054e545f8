"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("eyeline")
except PackageNotFoundError:  # run from a checkout that was not installed
    VERSION = "0+unknown"
