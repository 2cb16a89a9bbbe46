"""Stands in for the build backend of the llama-cpp-python source package while `pip download` looks at it.

pip insists on asking a source package for its metadata, even when it only has to fetch it, and would install the real
backend (and run the package's build code) for that. We want the archive alone: this answers from the PKG-INFO file that
every source package carries, and refuses to build.
"""

import os
import shutil


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = "llama_cpp_python.dist-info"
    os.makedirs(os.path.join(metadata_directory, name))
    shutil.copy("PKG-INFO", os.path.join(metadata_directory, name, "METADATA"))
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise RuntimeError("this stand-in only answers questions about metadata; it builds nothing")
