"""What every command prints, kept as files: the words, and apart from them what no change of words may change.

`stored` holds what is shown, `listed` the screens, `shown` how one is made, `facts` what is taken from it, `golden` the
files. `make screens` writes them anew; CONTRIBUTING.md says how to change a sentence.
"""
