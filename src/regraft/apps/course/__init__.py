"""The course: chapters, and questions that check themselves."""
