//! The report: Markdown tables, written by the measuring command.

use crate::run::{Measured, Sample, median};
use crate::servers::Kind;

/// A ratio column of a section.
pub struct Ratio {
    /// Column heading.
    pub name: &'static str,
    /// The server whose figures are compared.
    pub of: Kind,
    /// The servers to compare with; the best one counts.
    pub to: &'static [Kind],
}

/// One question and its results.
pub struct Section {
    /// Heading.
    pub title: String,
    /// Description of the measurement.
    pub text: String,
    /// Columns after the servers' own.
    pub ratios: Vec<Ratio>,
    /// Rows of the table.
    pub measured: Vec<Measured>,
}

/// Renders the whole page.
pub fn page(machine: &[String], method: &str, sections: &[Section], left_out: &[String]) -> String {
    let mut out = String::from(
        "# Benchmarks\n\nWritten by `make bench`; do not edit. Figures are medians of interleaved rounds, ratios are \
         medians of each round's \
         ratio.\nA cell shows: requests per second · median latency · the server's CPU time per request.\n\n",
    );
    machine.iter().for_each(|line| out.push_str(&format!("- {line}\n")));
    out.push_str(&format!("- {method}\n"));
    left_out.iter().for_each(|line| out.push_str(&format!("- left out: {line}\n")));
    sections.iter().for_each(|section| out.push_str(&section.render()));
    out
}

impl Section {
    fn render(&self) -> String {
        let mut out = format!("\n## {}\n\n{}\n\n", self.title, self.text);
        let Some(first) = self.measured.first() else { return out };
        let kinds: Vec<Kind> = first.rows.iter().map(|(kind, _)| *kind).collect();
        let ratios: Vec<&Ratio> =
            self.ratios.iter().filter(|ratio| first.ratio(ratio.of, ratio.to).is_some()).collect();
        let heads = kinds.iter().map(|kind| kind.name()).chain(ratios.iter().map(|ratio| ratio.name));
        row(&mut out, "", heads.map(str::to_owned));
        row(&mut out, "---", (0..kinds.len() + ratios.len()).map(|_| "---:".to_owned()));
        for measured in &self.measured {
            let figures = measured.rows.iter().map(|(_, samples)| figures(samples));
            let shown = ratios.iter().map(|ratio| {
                measured.ratio(ratio.of, ratio.to).map_or_else(String::new, |ratio| format!("**{ratio:.2}**"))
            });
            row(&mut out, measured.cell.name, figures.chain(shown));
        }
        out
    }
}

fn row(out: &mut String, head: &str, cells: impl Iterator<Item = String>) {
    out.push_str(&format!("| {head} |"));
    cells.for_each(|cell| out.push_str(&format!(" {cell} |")));
    out.push('\n');
}

fn figures(samples: &[Sample]) -> String {
    let median_of = |figure: fn(&Sample) -> f64| median(&samples.iter().map(figure).collect::<Vec<_>>());
    let cpu = median_of(|sample| sample.cpu_us);
    let cpu = if cpu > 0.0 { format!(" · {cpu:.1} µs") } else { String::new() };
    format!("{} · {:.0} µs{cpu}", thousands(median_of(|sample| sample.iops)), median_of(|sample| sample.median_us))
}

/// Formats a whole number with a comma before every three digits.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::HITS;

    #[test]
    fn section_renders_as_a_table_with_ratios() {
        let samples = |iops| vec![Sample { iops, median_us: 46.4, cpu_us: 5.04 }];
        let measured = Measured {
            cell: HITS[0],
            rows: vec![(Kind::Hotset, samples(1_234_567.0)), (Kind::Nbdkit, samples(617_283.5))],
        };
        let ratios = vec![
            Ratio { name: "to nbdkit", of: Kind::Hotset, to: &[Kind::Nbdkit] },
            Ratio { name: "to qemu", of: Kind::Hotset, to: &[Kind::Qemu] },
        ];
        let section = Section { title: "Hits".into(), text: "Text.".into(), ratios, measured: vec![measured] };
        let expected = "\n## Hits\n\nText.\n\n|  | hotset | nbdkit | to nbdkit |\n| --- | ---: | ---: | ---: |\n\
                        | 4 KiB random read, depth 1 | 1,234,567 · 46 µs · 5.0 µs | 617,284 · 46 µs · 5.0 µs | \
                        **2.00** |\n";
        assert_eq!(section.render(), expected);
    }
}
