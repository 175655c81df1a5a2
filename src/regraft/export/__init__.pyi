from .common import is_network, needed, refuse_foreign
from .huggingface import export_huggingface
from .model_card import int8_rows
from .numpy_folder import export_numpy
from .onnx import export_onnx
from .onnx_graph import write_fused_graph, write_graph
from .parity import TOLERANCE, ExportResult, parity_rows

__all__ = [
    "TOLERANCE",
    "ExportResult",
    "export_huggingface",
    "export_numpy",
    "export_onnx",
    "int8_rows",
    "is_network",
    "needed",
    "parity_rows",
    "refuse_foreign",
    "write_fused_graph",
    "write_graph",
]
