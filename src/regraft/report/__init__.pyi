from .attention_figures import (
    attention_picture,
    darkest_weight,
    learned_picture,
    mask_picture,
    mask_title,
    masks_picture,
    rollout_picture,
    rotary_picture,
    sinusoids_picture,
)
from .explanation_page import class_words_to_html, explanation_css, explanation_to_html
from .fit_page import write_fit_report
from .held_out import UPDATE_COLUMNS, forecast_sentence, update_rows, update_sentence
from .sentences import (
    base_arm,
    encoder_sentence,
    interval_in_words,
    percent,
    points_in_words,
)
from .tables import comparison_to_dict
from .writer import write_report

__all__ = [
    "UPDATE_COLUMNS",
    "attention_picture",
    "base_arm",
    "class_words_to_html",
    "comparison_to_dict",
    "darkest_weight",
    "encoder_sentence",
    "explanation_css",
    "explanation_to_html",
    "forecast_sentence",
    "interval_in_words",
    "learned_picture",
    "mask_picture",
    "mask_title",
    "masks_picture",
    "percent",
    "points_in_words",
    "rollout_picture",
    "rotary_picture",
    "sinusoids_picture",
    "update_rows",
    "update_sentence",
    "write_fit_report",
    "write_report",
]
