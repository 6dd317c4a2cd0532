"""Run settings: dataclasses, their dict form and command-line overrides."""

from dape_jax.config.data import DataConfig, TaskConfig
from dape_jax.config.dicts import experiment_from_dict, experiment_to_dict
from dape_jax.config.experiment import (
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
)
from dape_jax.config.model import ModelConfig

__all__ = [
    "DataConfig",
    "ExperimentConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimizerConfig",
    "TaskConfig",
    "TrainConfig",
    "experiment_from_dict",
    "experiment_to_dict",
]
