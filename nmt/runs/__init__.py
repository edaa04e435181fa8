"""Runs: a run directory, the training that fills it, and what is opened from it.

Knows files and models together; refuses to know the command line. The modules in import order:

    configs             The config of the choice among synthetic pairs; no torch.
    task                The interface of a task: training examples, evaluation and samples.
    translation         The task of translation.
    language_model      The task of language modelling.
    classification      The task of classification.
    tasks               The table of tasks, and the evaluation of a model by the code of its task.
    directory           A run directory: its files, its lock and its config.
    status              The file that says how a training stands.
    agreement           The agreement of several runs that are to predict together.
    shown               A run as a table for a notebook.
    markup              Inline tags taken out of lines, and put into their translations.
    checkpoint_names    Checkpoints by their names: final, best, last, average or a step.
    evaluation_text     The pairs that a run is scored on.
    asking              Sources as a model reads them: behind context and the tags that ask for something.
    opened              A run that is open, and what may be asked of its model.
    opening             Runs opened: one, an ensemble, or one beside a language model.
    pair_classifier     The probability of a label of pairs under a classifier, for a filter.
    embeddings          Embeddings that begin from vectors of words.
    learnt_files        Files that a training learns from beside its data, by their digests.
    teachers            The runs that teach the one in training.
    requirements        What a training needs, asked for before anything is prepared.
    start               The start of a training from the model of another run.
    scorers             The models of filters of training pairs, which score pairs.
    training_data       The training data of a run, prepared from its whole config.
    objective_context   What an objective asks of its training: teachers, and the text behind ids.
    scored_sets         The named corpora that are scored beside the data of a run.
    validation          Validations before the end of a training: their search, their pairs, their scores.
    tuning              The search of a run, tuned on the validation split when its training ends.
    train               A training: data, model, trainer and scores joined.
    stages              Folders of text that are made once, named by what they are made of.
    synthetic           Synthetic pairs: text, its translations, and the choice among them.
    reranker            Candidates of a run, scored by other runs.
"""
