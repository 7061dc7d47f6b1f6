"""Examples of the commands, for their help."""

from __future__ import annotations

EXAMPLES = {
    "": """examples:
  nmfscale demo                                a first fit, to real text on this machine
  nmfscale fit cells.h5ad -k 10 -o cells.h5    fit a topic model
  nmfscale plot cells.h5 -o structure.png      look at it
  nmfscale COMMAND --help                      more about a command""",
    "demo": """examples:
  nmfscale demo
  nmfscale demo -o first-look --force""",
    "fit": """examples:
  nmfscale fit counts.npz -k 10 --feature-names words.txt -o model.h5
  nmfscale fit cells.h5ad -k 6 --layer counts --seed 1 -o cells-k6.h5
  nmfscale fit donor1.h5ad donor2.h5ad -k 10 -o donors.h5
  nmfscale fit cells.h5ad -k 10 --features highly_variable --samples kept.txt
  nmfscale fit cells.h5ad -k 6 --layer counts --write-h5ad topics -o cells-k6.h5
  nmfscale fit matrix.mtx.gz -k 20 --model poisson --dtype float32 --max-iter 200 --quiet
  nmfscale fit counts.npz -k 20 --model ssnmf --labels classes.csv
  nmfscale fit cells.h5ad -k 10 --batch donor
  nmfscale fit gaps.csv -k 5 --samples-in rows --data-weights nan
  nmfscale fit cells.nmf -k 20 --checkpoint state --resume
  nmfscale fit cells.nmf -k 20 --workers 4
  nmfscale fit cells.nmf -k 20 --plan --workers 16 --threads 1
  nmfscale fit cells.nmf -k 20 --scheduler tls://192.0.2.10:8786 --tls certificates""",
    "fit-each": """examples:
  nmfscale fit-each donor1.h5ad donor2.h5ad donor3.h5ad -k 10 --seed 1 -o fits
  nmfscale fit-each donors/*.h5ad -k 5 8 10 --layer counts -o fits
  nmfscale fit-each donors/*.h5ad -k 5 8 10 --layer counts -o fits --resume --workers 4
  nmfscale cluster-topics fits/*.h5 -o programs.csv -o programs.png""",
    "cluster": """examples:
  nmfscale cluster
  nmfscale cluster --workers 4 --memory-limit 8GB --local-directory /scratch
  nmfscale cluster --host 192.0.2.10 --tls certificates
  nmfscale fit cells.nmf -k 20 --scheduler tcp://127.0.0.1:8786""",
    "completion": """examples:
  nmfscale completion bash > ~/.local/share/bash-completion/completions/nmfscale
  nmfscale completion zsh > ~/.zfunc/_nmfscale""",
    "store": """examples:
  nmfscale store cells.h5ad cells.nmf
  nmfscale store matrix.mtx.gz cells.nmf --memory-limit 1GB
  nmfscale store donor1.h5ad donor2.h5ad donors.nmf --join outer
  nmfscale fit cells.nmf -k 20 --memory-limit 2GB --checkpoint state -o cells.h5""",
    "text": """examples:
  nmfscale text folder texts.nmf --stop-words english
  nmfscale text reviews.csv:review reviews.nmf --names id --groups author --ngram-range 1-2
  nmfscale fit reviews.nmf -k 20 -o model.h5
  nmfscale text new.csv:review new.nmf --vocabulary model.h5 --ngram-range 1-2""",
    "transform": """examples:
  nmfscale transform model.h5 new.npz -o loadings.npz
  nmfscale transform programs.csv new.h5ad -o loadings.csv.gz --missing restrict
  nmfscale transform model.h5 new.h5ad -o loadings.csv.gz --missing restrict
  nmfscale transform model.h5 new.h5ad -o loadings.npz --batch donor
  nmfscale transform model.h5 new.nmf -o loadings.npy --memory-limit 2GB
  nmfscale transform model.h5 new.nmf -o loadings.npy --workers 4""",
    "info": """examples:
  nmfscale info cells.h5ad
  nmfscale info model.h5
  nmfscale info --build""",
    "select-k": """examples:
  nmfscale select-k counts.npz -k 2-12 -o topics.csv -o topics.png
  nmfscale select-k cells.h5ad -k 5,10,15,20 --units cells.h5ad:patient --folds 5
  nmfscale select-k cells.nmf -k 2-20 --checkpoint state --resume --workers 4""",
    "stability": """examples:
  nmfscale stability counts.npz -k 10 -o starts.csv -o starts.png
  nmfscale stability cells.h5ad -k 8 --starts 50 --consensus consensus.h5
  nmfscale stability cells.h5ad --of model.h5 --starts 10 -o starts.h5
  nmfscale stability cells.nmf -k 8 --checkpoint state --resume --workers 4""",
    "topic-quality": """examples:
  nmfscale topic-quality model.h5 counts.npz
  nmfscale topic-quality model.h5 counts.npz -o worst-words.csv --table features
  nmfscale topic-quality model.h5 other.nmf -o topics.csv --memory-limit 2GB""",
    "score-modalities": """examples:
  nmfscale score-modalities model.h5 cells.h5mu --modality rna --modality adt
  nmfscale score-modalities model.h5 seen.nmf --held-out other.nmf -o scores.csv""",
    "coherence": """examples:
  nmfscale coherence model.h5 --texts reviews.csv:review
  nmfscale coherence lists.txt --texts folder --measure c_npmi --stop-words english
  nmfscale coherence model.h5 --counts other.nmf --measure u_mass -o words.csv --table words""",
    "search": """examples:
  nmfscale search model.h5 god faith
  nmfscale search model.h5 orbit --n-top 50 -o space.csv""",
    "nearest": """examples:
  nmfscale nearest model.h5 0 17
  nmfscale nearest model.h5 numpy.linalg.svd --metric jensen-shannon -o like-svd.csv""",
    "cluster-topics": """examples:
  nmfscale cluster-topics donor1.h5 donor2.h5 donor3.h5 -o programs.csv -o programs.png
  nmfscale cluster-topics fits/*.h5 --samples fits.csv:donor --groups fits.csv:disease
  nmfscale cluster-topics fits/*.h5 -o consensus.csv.gz --table consensus --min-similarity 0.6""",
    "hierarchy": """examples:
  nmfscale hierarchy model.h5 -o tree.png --n-groups 5
  nmfscale hierarchy k5.h5 k10.h5 k20.h5 -o levels.csv -o levels.png""",
    "enrichment": """examples:
  nmfscale enrichment model.h5 --gene-sets hallmarks.gmt -o sets.csv -o sets.png
  nmfscale enrichment model.h5 --gene-sets hallmarks.gmt --test rank -o sets.h5
  nmfscale enrichment model.h5 --gene-sets sets.gmt --gene-symbols cells.h5ad:symbol
  nmfscale enrichment model.h5 --gene-sets hallmarks.gmt --differential genes.h5""",
    "batch-effects": """examples:
  nmfscale batch-effects model.h5 --batch cells.h5ad:donor
  nmfscale batch-effects model.h5 --batch donor --conditions disease --clusters cell_type
  nmfscale batch-effects model.h5 cells.h5ad -o effects.h5 -o batches.png
  nmfscale batch-effects model.h5 -o genes.csv --table features""",
    "report": """examples:
  nmfscale report model.h5 -o report.html
  nmfscale report model.h5 counts.h5ad --groups counts.h5ad:celltype -o report.html
  nmfscale report model.h5 --groups cells.csv:donor --other other.h5 -o report.html
  nmfscale report model.h5 --results tests.h5 --results genes.h5 -o report.html""",
    "differential": """examples:
  nmfscale differential model.h5 cells.h5ad --units cells.h5ad:donor -o genes.csv.gz
  nmfscale differential model.h5 counts.nmf --reference mean -o genes.h5 -o topic.png --topic 3
  nmfscale differential model.h5 counts.nmf -o genes.csv --checkpoint state --workers 4""",
    "pseudobulk": """examples:
  nmfscale pseudobulk model.h5 cells.h5ad --units donor --groups condition -o donors.h5
  nmfscale pseudobulk model.h5 cells.h5ad --units donor -o donors.h5ad --topic 3 --rounded
  nmfscale pseudobulk model.h5 cells.nmf --units cells.csv:donor -o donors.csv.gz""",
    "conditions": """examples:
  nmfscale conditions model.h5 cells.h5ad --groups condition --units donor -o changes.csv
  nmfscale conditions model.h5 cells.h5ad --groups condition --units donor --reference control
  nmfscale conditions model.h5 donors.h5 --covariates age -o changes.h5 -o topic.png --topic 3""",
    "features-by-group": """examples:
  nmfscale features-by-group model.h5 papers.nmf --groups papers.csv:year -o words.csv.gz
  nmfscale features-by-group model.h5 posts.nmf --groups blog --units author -o words.h5
  nmfscale features-by-group model.h5 papers.nmf --groups year -o topic.png --topic 3""",
    "export": """examples:
  nmfscale export model.h5 -o proportions.csv
  nmfscale export model.h5 -o genes.tsv.gz --table components
  nmfscale export model.h5 -o tables""",
    "restore": """examples:
  nmfscale restore cells.h5ad""",
    "plot": """examples:
  nmfscale plot model.h5 -o structure.png --groups cell-types.txt
  nmfscale plot model.h5 -o structure.png --groups cells.h5ad:cell_type
  nmfscale plot model.h5 -o genes.pdf --kind top --n-top 15
  nmfscale plot em.h5 default.h5 -o progress.png --kind progress""",
    "test": """examples:
  nmfscale test model.h5 --groups beers.csv:region --units beers.csv:brewery
  nmfscale test model.h5 --groups cells.h5ad:condition --units cells.h5ad:patient -o tests.csv
  nmfscale test model.h5 --groups dose --units patient --statistic trend --covariates age
  nmfscale test model.h5 --groups party.txt --strata state.txt --seed 1 -o tests.h5 -o tests.png""",
    "bootstrap": """examples:
  nmfscale bootstrap model.h5 --groups beers.csv:region --units beers.csv:brewery
  nmfscale bootstrap model.h5 --groups groups.txt --seed 1 -o weights.csv -o weights.png
  nmfscale bootstrap model.h5 --groups groups.txt --style density -o replicates.png
  nmfscale bootstrap model.h5 --groups groups.txt --kind fit --counts counts.npz -o means.h5""",
    "correspondence": """examples:
  nmfscale correspondence model.h5 --groups beers.csv:region --units beers.csv:brewery
  nmfscale correspondence model.h5 --groups groups.txt -o map.csv -o map.h5 -o biplot.png
  nmfscale correspondence model.h5 --groups groups.txt --axes 2,3 --scaling groups -o biplot.png""",
}
