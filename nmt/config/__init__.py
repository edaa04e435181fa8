"""Config: from the command line to dataclasses, and readable errors.

Knows the dataclasses of all components; refuses to know what they are used for. The modules in import order:

    verb                One verb: a row of the table in `nmt.verbs`.
    renames             Keys that had other names in earlier versions.
    registry            The parts with several dataclasses, and the tables they come from.
    limits              Limits of all numbers: none is NaN or absurdly large.
    explain             Errors of Hydra and OmegaConf, each as one readable sentence.
    plain               YAML as plain data: the one reader of stored configs and of --config-dir.
    spelling            Values as the command line spells them.
    starting            A training that starts from the model of another run, which it follows.
    roots               Root configs that several modules know.
    misfits             Checks across components.
    stored              The config.yaml of a run: written, read again, compared.
    sweeps              Settings of a sweep, the values that it tries, names of its trials.
    help                `nmt VERB --help`: every key with its default and its docstring.
    overrides           The arguments of a verb; mistakes are refused before anything is composed.
    schemas             Hydra for one verb: the schema of every choice, and the config of a command.
    small_data          Settings by the size of the training split, with reasons.
    named_runs          The runs that a command line names, and what it takes over from them.
    composed            One config as Hydra composed it: checked, completed by the data; the name of its run.
    blame               All that is wrong with overrides, each with those to blame.
    compose             From the command line of one verb to its config, through Hydra.
    trials              From the command line of a sweep to its trials.
    completion          The words that may stand where the cursor is.
"""
