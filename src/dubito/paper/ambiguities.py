"""Where the paper's text is ambiguous or contradicts itself or its code, what dubito does there, and why.

The authors' code is their public repository, kumar-shridhar/PyTorch-BayesianCNN; hashes are commits of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Ambiguity(NamedTuple):
    """A place in the paper, what is unclear or contradictory there, and the choice."""

    place: str
    problem: str
    choice: str


AMBIGUITIES = (
    Ambiguity(
        "Section 2.2, equation (3)",
        "The sum over n draws is not divided by n.",
        "The mean over the draws, for n must not decide how much data counts.",
    ),
    Ambiguity(
        "Section 2.2, code",
        "KL[q || p] in the text; KL[p || q] in the code since 16e2462. In December 2018 (590ec33) its KL is that of "
        "parameters that the forward pass never uses; from April to June 2019 (5c1fc7f) the loss is the cross-entropy "
        "minus beta times KL. If the published accuracies come from the former, they carry no effective KL.",
        "KL[q || p] of the very weights that the network uses, in closed form, tested against torch.distributions.",
    ),
    Ambiguity(
        "Section 2.2",
        "KL is called intractable and estimated by draws, equation (3); between Gaussians it has a closed form.",
        "The closed form wherever there is one, draws for the mixture prior.",
    ),
    Ambiguity(
        "Section 2.3, code",
        "alpha has indices i, j, h, w in the text, one for each weight; the code has one alpha for a whole layer, and "
        "later none at all.",
        "One for each weight (`--posterior alpha`). The budget `cpu` learns a standard deviation for each "
        "weight instead: with alpha, a weight near 0 cannot be uncertain.",
    ),
    Ambiguity(
        "Sections 2.2 and 2.3",
        "The one draws weights, the other activations. Of a convolution these are different distributions: activations "
        "are drawn on their own at every position, although positions share weights. In the code of April to June "
        "2019 weights are drawn and activations too; on 27 July 2019 (34b66ca) weights alone.",
        "Activations (`--estimator local`), said in the documentation; `--estimator weight` draws the weights "
        "themselves.",
    ),
    Ambiguity(
        "Section 2.3",
        "The means are said to be learned first, as in a frequentist network and so that validation accuracy rises, "
        "and the variances in a second operation; both share one loss, that of the training images.",
        "Both are learned at once, by the gradient of the one free energy.",
    ),
    Ambiguity(
        "Section 2.3",
        "The equation of the activations has no bias.",
        "Biases, which have posteriors as well.",
    ),
    Ambiguity(
        "Section 3, normalisation",
        "The formula divides by the sum over the classes; the noise experiment speaks of normalising among one batch. "
        "A notebook of February 2019 divides by the sum over the batch (dim=0), and the outputs of ReLU at that.",
        "Over the classes, always. The noise experiment shows both, and where the paper's constant comes from.",
    ),
    Ambiguity(
        "Section 3, head",
        "Softplus normalisation is proposed as the head; the code always trains with softmax, and normalises by "
        "softplus only when it evaluates, since March 2020 (f6b16cc), after the paper.",
        "The head belongs to the network: one and the same in training and prediction.",
    ),
    Ambiguity(
        "Section 3, head",
        "Softplus normalisation is said to reach zero easily, at logits below -4. Softmax needs no infinite logit "
        "either: a difference of 7 between logits gives a probability below 0.001.",
        "Both heads are trained, and the share of probabilities below 0.001 is measured.",
    ),
    Ambiguity(
        "Section 3, equation (11)",
        "In the logistic function, a is the logarithm of a ratio; the second expression lacks the logarithm.",
        "The logarithm.",
    ),
    Ambiguity(
        "Section 3, text",
        "High aleatoric uncertainty is to be cured by gathering more data, high epistemic uncertainty by refining the "
        "model. More data of the same kind reduces epistemic uncertainty alone; aleatoric uncertainty asks for better "
        "data, such as sharper images or cleaner labels.",
        "The usual meaning: aleatoric is in the data, epistemic goes away with more data.",
    ),
    Ambiguity(
        "Section 3, Kendall & Gal",
        "Their split is of logits, with another unit than variances of probabilities.",
        "Shown beside the others, marked as such, and compared by how well it tells wrong predictions from right ones.",
    ),
    Ambiguity(
        "Section 4, activation",
        "Softplus hidden units are said to be needed so that the variance never becomes zero; but a unit's activation "
        "does not enter the variance of the weights. That they change nothing in practice was not tested here.",
        "Softplus, as in the tables of the appendix (`--activation relu` is there).",
    ),
    Ambiguity(
        "Section 4, prior",
        "The text does not say what the prior is (a passage commented out in its source: standard Gaussians); N(0, "
        "0.1^2) in the code.",
        "Preset `paper`: N(0, 1). Budget `cpu`: a zero-mean Gaussian whose scale is learned for each layer, the "
        "tighter bound.",
    ),
    Ambiguity(
        "Section 4, initialisation",
        "The posterior is initially a standard Gaussian in the text; the appendix gives a variance of -10, which "
        "none can be; the code -5 as rho.",
        "-10 is read as the logarithm of the variance, a standard deviation of exp(-5). Means start as He-normal "
        "filters, scaled on one batch of images: with standard Gaussians nothing learns.",
    ),
    Ambiguity(
        "Section 4, identical architectures",
        "Bayesian and frequentist networks are said to be identical; in the code the frequentist AlexNet has ReLU, "
        "three dropout layers and another width.",
        "Twins of one table, with the same activation, head, initialisation and training settings.",
    ),
    Ambiguity(
        "Section 4, validation accuracy",
        "The accuracies are called validation accuracies, but are those of the test splits: the code reports the best "
        "epoch on them.",
        "A tenth of the training images is held out and chooses the epoch; the test split is evaluated once.",
    ),
    Ambiguity(
        "Section 4, dropout",
        "Bayesian LeNet-5 with dropout has 83 % on CIFAR-10: a reported result that the authors could not reproduce. "
        "There is none for CIFAR-100.",
        "LeNet-5 of the appendix with dropout between all weight layers, trained and measured on all three data sets. "
        "Preset `paper`: p = 0.5. Budget `cpu`: p = 0.05; of what was tried, less dropout was better.",
    ),
    Ambiguity(
        "Section 4, regularisation",
        "Dropout comes after the first, fourth and sixth layer; whether pooling layers count, how much is dropped, and "
        "whether the frequentist AlexNet of table 1 has it as well is not said.",
        "Rows of the appendix's table are counted; in weight layers the sixth would be the output itself. p = 0.5, in "
        "this experiment alone. Validation is by draws of the dropout masks, as for MC dropout.",
    ),
    Ambiguity(
        "Section 4, regularisation",
        "The frequentist AlexNet is said to have no regularisation; the appendix gives an L2 penalty of 0.0005.",
        "Preset `paper`: the penalty, on frequentist networks. Budget `cpu`: none, but augmentation for all three.",
    ),
    Ambiguity(
        "Section 4, images",
        "Whether pixels are standardised and images augmented is not said; the old code crops training and test images "
        "at random. Nor is a schedule of the learning rate; the old code multiplies it by 0.2 after epoch 60.",
        "Pixels standardised by channel, test images never changed. Preset `paper`: no augmentation, a constant rate. "
        "Budget `cpu`: crops and, of CIFAR, flips; one cycle.",
    ),
    Ambiguity(
        "Section 4 and Table 1",
        "Bayesian networks are said to perform as the frequentist ones do; on CIFAR-100 the table has them 3, 2 and 2 "
        "points below.",
        "More than one point is called a difference.",
    ),
    Ambiguity(
        "Table 1 and Table 2",
        "Bayesian VGG on CIFAR-10 has 86 % in one and 85 % in the other.",
        "Each table beside its own numbers.",
    ),
    Ambiguity(
        "Table 2 and the noise figure",
        "Aleatoric uncertainty of VGG on MNIST is 0.00110 in the table and 0.00099897 without noise in the figure, "
        "which is the table's value for CIFAR-10.",
        "Both are shown; see how the size of a batch decides them.",
    ),
    Ambiguity(
        "Table 2",
        "Epistemic uncertainty is said to fall as accuracy rises; on CIFAR-10 AlexNet (73 %) has 0.0002, less than VGG "
        "(85 %) with 0.0013.",
        "Whether it falls is computed from our own numbers.",
    ),
    Ambiguity(
        "Table 2",
        "Aleatoric uncertainty is larger on MNIST (0.00110) than on CIFAR-10 (0.00099), although MNIST is far less "
        "ambiguous. Both are close to 1/B for batches of about a thousand: constants of the normalisation over a "
        "batch.",
        "Over the classes, where CIFAR-10 has far more of it.",
    ),
    Ambiguity(
        "Table 2",
        "Uncertainties are means over the epochs, which mix an untrained network with a trained one. The code of that "
        "time keeps the largest probability of the first image of every batch; that is no variance.",
        "Means over the epochs of the validation part, and also the last epoch and the test split.",
    ),
    Ambiguity(
        "Table 2",
        "Averaging over the classes is called homoscedastic uncertainty; it is still different for every image.",
        "Mean over the classes of the diagonal, then over images.",
    ),
    Ambiguity(
        "Noise figure",
        "Aleatoric uncertainty is said to be constant to six decimal places; the printed values, 0.00099897 to "
        "0.00099838, are 0.000999 and 0.000998 to six.",
        "Our values are given to eight.",
    ),
    Ambiguity(
        "Noise figure",
        "Whether each pixel has noise of its own, whether it is added before or after normalising the pixels, and "
        "whether the sum is clipped, is not said.",
        "Each pixel its own, also in the frame that makes MNIST 32 x 32; to pixels in [0, 1]; not clipped.",
    ),
    Ambiguity(
        "Appendix, sample size",
        "Sample size 10: draws in each training step, or in prediction? The code trains with one.",
        "Preset `paper`: both. Budget `cpu`: one in training, ten in the evaluation.",
    ),
    Ambiguity(
        "Appendix, beta",
        "beta_i = 2^(M-i) / (2^M - 1) sums to 1 over an epoch and so belongs to a sum of log-likelihoods; the code "
        "multiplies their mean by the number of images, an effective temperature of 1/M.",
        "Preset `paper`: the exact free energy, temperature 1. Budget `cpu`: a temperature below 1, stated with every "
        "run.",
    ),
    Ambiguity(
        "Appendix, L2",
        "An L2 penalty beside a prior would count the prior twice.",
        "For frequentist and dropout networks only.",
    ),
    Ambiguity(
        "Appendix, M",
        "The number of images in a batch in the shapes, the number of batches in beta; neither is said.",
        "As named here.",
    ),
    Ambiguity(
        "Appendix, input shapes",
        "LeNet-5 has one channel, AlexNet and VGG three, all 32 x 32 pixels; MNIST has one channel and 28 x 28 pixels.",
        "As many channels as the data set has; MNIST in a black frame of two pixels.",
    ),
    Ambiguity(
        "Appendix, LeNet-5",
        "The second convolution has 1 input channel; after 6 filters it must have 6.",
        "6.",
    ),
    Ambiguity(
        "Appendix, AlexNet",
        "Stride 4 cannot keep 32 x 32 pixels; the printed sizes 32, 15 and 7 do not follow from the strides.",
        "The strides: 8, 4, 2 and 1.",
    ),
    Ambiguity(
        "Appendix, last layers",
        "Those of AlexNet and VGG have width 128 and 512: their inputs, not the classes. That of LeNet-5 has 10, for "
        "CIFAR-100 too.",
        "As many as there are classes.",
    ),
    Ambiguity(
        "Appendix, VGG",
        "No file of the repository that was examined defines a VGG at any time.",
        "The table of the appendix.",
    ),
)
