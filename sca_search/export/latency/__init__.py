"""Latency of exported networks: timing, calibration on this or another device, and the model that predicts it."""

from sca_search.export.latency.model import Calibration, LatencyModel, latency_model

__all__ = ["Calibration", "LatencyModel", "latency_model"]
