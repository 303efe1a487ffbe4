"""Does a picture show what its prompt asked for? For the embedded model's world of coloured shapes.

`scenes` is that world, `captions` its language, `checker` reads a picture, `prompts` are the exam
and `score` holds it. numpy and Pillow only: the score belongs to packages on any engine and device.
"""
