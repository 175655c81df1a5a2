"""Out of regraft: a run folder as a Hugging Face folder or as ONNX, each proved equal to ours.

Comes in: a run folder. Goes out: a folder that others load with no code of ours, and how far its
scores are from ours. The way in is bases.py's.
"""

from regraft.interop.delivery import ExportResult
from regraft.interop.huggingface import export_huggingface
from regraft.interop.onnx import export_onnx

__all__ = ["ExportResult", "export_huggingface", "export_onnx"]
