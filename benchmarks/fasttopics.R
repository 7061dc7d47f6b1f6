# Fits one problem with fastTopics and prints its progress; called by peers.py.
# Arguments: folder with the binary arrays, n, m, K, outer iterations, threads.
arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]
number <- as.integer(arguments[-1])
n <- number[1]; m <- number[2]; k <- number[3]; iterations <- number[4]; threads <- number[5]
suppressMessages({library(Matrix); library(fastTopics)})

vector <- function(name, what, size) readBin(file.path(folder, name), what, size)
pointers <- vector("p.bin", "integer", m + 1)
counts <- new("dgCMatrix", Dim = c(n, m), p = pointers,
              i = vector("i.bin", "integer", pointers[m + 1]),
              x = vector("x.bin", "double", pointers[m + 1]),
              Dimnames = list(as.character(seq_len(n)), as.character(seq_len(m))))
loadings <- matrix(vector("L.bin", "double", n * k), n, k, byrow = TRUE,
                   dimnames = list(rownames(counts), NULL))
factors <- matrix(vector("F.bin", "double", m * k), m, k, byrow = TRUE,
                  dimnames = list(colnames(counts), NULL))
start <- init_poisson_nmf(counts, F = factors, L = loadings, verbose = "none")
updates <- function(numiter, verbose)
  fit_poisson_nmf(counts, fit0 = start, numiter = numiter, method = "scd", verbose = verbose,
                  control = list(numiter = 4, extrapolate = TRUE, nc = threads))

memory <- function(field) {
  line <- grep(field, readLines("/proc/self/status"), value = TRUE)
  as.numeric(gsub("[^0-9]", "", line)) * 1024
}
warm <- updates(1, "none")
invisible(gc())
cat("5", file = "/proc/self/clear_refs")
before <- memory("VmRSS:")
cat("start\n")
fit <- suppressMessages(updates(iterations, "detailed"))
cat("end\n")
peak <- memory("VmHWM:") - before

writeBin(fit$progress$loglik, file.path(folder, "loglik.bin"))
writeBin(fit$progress$timing, file.path(folder, "timing.bin"))
writeBin(as.vector(t(fit$L)), file.path(folder, "L_end.bin"))
writeBin(as.vector(t(fit$F)), file.path(folder, "F_end.bin"))
cat(sprintf("version %s\npeak %.0f\n", packageVersion("fastTopics"), peak))
