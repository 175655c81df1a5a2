"""Everything that has `predict_proba`: make it, load it, score it, explain it.

Every classifier: base, storage, scoring, abstention. Kinds: neural, huggingface, blend; logistic
and what ends in one (tfidf, embeddings, base_table), whose features vectoriser and chunks count.
Fine-tuning: finetuning, starts, head_start, epochs, self_training, distillation.
`regraft fit`: fitting, fit_members, fit_bases, base_table_making, fit_plan; judging (held_out,
weights, learning_curve); fit_result, kept_examples, updating.
Explaining: explanation, attribution, gradients, contributions, table_explanation.
Whole tables: table_prediction, journal. Python callers: estimator, table_fit, inputs.

The names in `__init__.pyi` are the public surface of this room; they load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
