//! Knee of a curve (Satopää and others, "Finding a Kneedle in a Haystack", 2011).

/// Index of the point farthest above the straight line from the first point to the last. Up to the knee a step gains
/// more than the average step, past it less. `None` if no point lies above the line.
pub fn knee(points: &[(f64, f64)]) -> Option<usize> {
    let (first, last) = (*points.first()?, *points.last()?);
    let (width, height) = (last.0 - first.0, last.1 - first.1);
    if width <= 0.0 || height <= 0.0 {
        return None;
    }
    let above = |point: &(f64, f64)| (point.1 - first.1) / height - (point.0 - first.0) / width;
    let best = (0..points.len()).max_by(|a, b| above(&points[*a]).total_cmp(&above(&points[*b])))?;
    (above(&points[best]) > 0.0).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knee_is_the_point_farthest_above_the_chord() {
        let curve = [(0.0, 0.0), (1.0, 40.0), (2.0, 80.0), (3.0, 82.0), (4.0, 83.0)];
        assert_eq!(knee(&curve), Some(2));
        assert_eq!(knee(&[(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]), None, "a straight line has none");
        assert_eq!(knee(&[(0.0, 5.0), (1.0, 5.0)]), None);
        assert_eq!(knee(&[]), None);
    }
}
