//! The problem: a field, its parts, its initial values, and a reference solution.

use std::f64::consts::TAU;
use std::ops::Range;

/// Laplace's equation on `ny` rows of `nx` points. The left and right columns are fixed; top and bottom rows are
/// neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaplaceProblem {
    pub nx: u32,
    pub ny: u32,
}

impl LaplaceProblem {
    /// Returns the distance in points between consecutive rows, which are aligned to 16 bytes.
    pub fn pitch(&self) -> u32 {
        self.nx.next_multiple_of(4)
    }

    /// Returns the bytes of `rows` rows.
    pub fn bytes(&self, rows: u32) -> usize {
        rows as usize * self.pitch() as usize * 4
    }

    /// Returns the rows of a rank. If the rows cannot be divided equally, the first ranks have one more.
    pub fn rows(&self, rank: u32, ranks: u32) -> Range<u32> {
        let (least, more) = (self.ny / ranks, self.ny % ranks);
        let first = |rank: u32| rank * least + rank.min(more);
        first(rank)..first(rank + 1)
    }

    /// Returns a row before the first iteration.
    pub fn first_values(&self, row: u32) -> Vec<f32> {
        let mut values = vec![0.0; self.pitch() as usize];
        let edge = (TAU * f64::from(row) / f64::from(self.ny - 1)).sin() as f32;
        values[0] = edge;
        values[self.nx as usize - 1] = edge;
        values
    }

    /// Returns a row after the first iteration.
    pub fn second_values(&self, row: u32) -> Vec<f32> {
        let here = self.first_values(row);
        let [above, below] = [(row + self.ny - 1) % self.ny, (row + 1) % self.ny].map(|row| self.first_values(row));
        let mut values = here.clone();
        for at in 1..self.nx as usize - 1 {
            values[at] = 0.25 * (here[at + 1] + here[at - 1] + below[at] + above[at]);
        }
        values
    }

    /// Returns all rows before the first iteration.
    pub fn first_field(&self) -> Vec<f32> {
        (0..self.ny).flat_map(|row| self.first_values(row)).collect()
    }

    /// Computes `iterations` iterations with a simple loop. Returns the field and the last iteration's sum of squared
    /// changes.
    pub fn plain(&self, iterations: u32) -> (Vec<f32>, f64) {
        let (nx, ny, pitch) = (self.nx as usize, self.ny as usize, self.pitch() as usize);
        let mut field = self.first_field();
        let mut next = field.clone();
        let mut sum = 0.0;
        for _ in 0..iterations {
            ginlab::progress::record();
            sum = 0.0;
            for row in 0..ny {
                let (above, below) = ((row + ny - 1) % ny * pitch, (row + 1) % ny * pitch);
                for at in 1..nx - 1 {
                    let here = row * pitch + at;
                    // The order of additions is that of the kernels.
                    let value = 0.25 * (field[here + 1] + field[here - 1] + field[below + at] + field[above + at]);
                    let change = f64::from(value - field[here]);
                    sum += change * change;
                    next[here] = value;
                }
            }
            std::mem::swap(&mut field, &mut next);
        }
        (field, sum)
    }

    /// Returns the number of points that differ in any bit. Padding after the last column is ignored.
    pub fn wrong(&self, found: &[f32], expected: &[f32]) -> u64 {
        let rows = found.chunks(self.pitch() as usize).zip(expected.chunks(self.pitch() as usize));
        let differ = |(found, expected): (&[f32], &[f32])| {
            let points = found.iter().zip(expected).take(self.nx as usize);
            points.filter(|(found, expected)| found.to_bits() != expected.to_bits()).count() as u64
        };
        rows.map(differ).sum::<u64>() + (found.len() != expected.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_values_match_one_iteration() {
        let problem = LaplaceProblem { nx: 11, ny: 7 };
        let (field, _) = problem.plain(1);
        for row in 0..problem.ny {
            let expected = &field[(row * problem.pitch()) as usize..][..problem.nx as usize];
            assert_eq!(&problem.second_values(row)[..problem.nx as usize], expected);
        }
    }

    #[test]
    fn every_row_belongs_to_one_rank() {
        for (ny, ranks) in [(16, 1), (16, 3), (17, 4), (5, 5)] {
            let problem = LaplaceProblem { nx: 8, ny };
            let mut next = 0;
            for rank in 0..ranks {
                let rows = problem.rows(rank, ranks);
                assert!(rows.start == next && !rows.is_empty(), "{rows:?}");
                next = rows.end;
            }
            assert_eq!(next, ny);
        }
    }

    #[test]
    fn points_average_neighbours_with_periodic_rows() {
        let problem = LaplaceProblem { nx: 5, ny: 4 };
        let edges: Vec<f32> = (0..4).map(|row| problem.first_values(row)[0]).collect();
        assert!(edges[1] > 0.8 && edges[2] < -0.8);
        let (field, sum) = problem.plain(1);
        for row in 0..4 {
            assert_eq!(
                &field[row * 8..row * 8 + 5],
                [edges[row], 0.25 * edges[row], 0.0, 0.25 * edges[row], edges[row]]
            );
        }
        assert!((sum - 2.0 * edges.iter().map(|edge| f64::from(0.25 * edge).powi(2)).sum::<f64>()).abs() < 1e-12);
        let (second, _) = problem.plain(2);
        // Row 3 is above row 0.
        assert_eq!(second[1], 0.25 * (0.0 + edges[0] + field[9] + field[25]));
        assert_eq!(problem.wrong(&second, &second), 0);
        assert!(problem.wrong(&second, &field) > 0);
    }
}
